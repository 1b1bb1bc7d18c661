"""Builds a collection from independent parts. A part that cannot be read costs only its own series."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit

logger = logging.getLogger(__name__)

Part = Callable[[], Iterable[Series | CollectError]]
"""Yields its series, and an error for each piece that it leaves out. It may also raise."""


def collect_parts(collector: str, parts: Iterable[Part], log_limit: LogLimit) -> Collection:
    """Returns the series of all readable parts. Broken parts are counted and logged.

    Raises CollectError where a part failed and none has series, NotApplicable where no part exists here.
    """
    series: list[Series] = []
    absent: list[NotApplicable] = []
    failed: list[CollectError] = []
    for part in parts:
        try:
            for each in part():
                if isinstance(each, CollectError):
                    failed.append(each)
                else:
                    series.append(each)
        except NotApplicable as error:
            absent.append(error)
        except CollectError as error:
            failed.append(error)
    if not series and failed:
        raise failed[0]
    if not series:
        raise NotApplicable(str(absent[0]) if absent else f"{collector} has nothing to read")
    for broken in failed:
        if log_limit.allows(str(broken)):
            logger.warning("collector %s skips a broken part: %s", collector, broken)
    return Collection(tuple(series), broken_parts=len(failed))
