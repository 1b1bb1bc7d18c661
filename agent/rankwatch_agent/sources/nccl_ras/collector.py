"""Collector `nccl_ras`: the health of a job's NCCL communicators, as NCCL's own RAS service tells it.

One question goes to all processes of the job, so only one agent asks: a service on the node itself is asked
while rank 0 of a run lives here. A service on another host is asked always; such an address belongs into the
settings of one agent.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import CollectError, Collection, NotApplicable, Series
from rankwatch_agent.runtime.supervision.log_limit import LogLimit
from rankwatch_agent.runtime.supervision.schedule import Schedule
from rankwatch_agent.sources.nccl_ras.address import Address, parse_addresses
from rankwatch_agent.sources.nccl_ras.client import ask
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_agent.sources.nccl_ras.judgement import Judge
from rankwatch_agent.sources.nccl_ras.local_runs import LocalRun, local_runs, ranks_by_process, run_of
from rankwatch_agent.sources.nccl_ras.series import series_of
from rankwatch_agent.sources.nccl_ras.text_form import parse_text

logger = logging.getLogger(__name__)

_UP = metric("rankwatch_nccl_ras_up")

_ASK_SHARE = 0.8
"""Part of the collector's deadline that a service may use."""


class _Outcome(NamedTuple):
    series: tuple[Series, ...]
    trouble: str = ""


class NcclRasCollector:
    """Several services, side by side; raises ConfigError at once where an address is none.

    addresses: as in the setting nccl_ras_address.
    directory: holds `<run>/<rank>.blackbox`.
    """

    name = "nccl_ras"

    def __init__(self, *, addresses: tuple[str, ...], directory: Path, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._directory = directory
        self._judges = {address: Judge() for address in parse_addresses(addresses)}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Ask each service once; raises NotApplicable where none is to be asked or none is there."""
        if not self._judges:
            raise NotApplicable("no nccl_ras_address is set")
        runs = local_runs(self._directory)
        asked = [address for address in self._judges if runs or not address.local]
        for address in self._judges.keys() - set(asked):
            self._judges[address] = Judge()
        if not asked:
            raise NotApplicable("no rank 0 of a run lives on this node")
        with ThreadPoolExecutor(len(asked)) as pool:
            outcomes = list(pool.map(lambda address: self._ask(address, runs), asked))
        for outcome in outcomes:
            if outcome.trouble and self._log_limit.allows(outcome.trouble):
                logger.warning("collector %s: %s", self.name, outcome.trouble)
        series = [each for outcome in outcomes for each in outcome.series]
        if not series:
            raise NotApplicable(f"nothing listens on {', '.join(map(str, asked))}")
        return Collection(tuple(series))

    def _ask(self, address: Address, runs: Sequence[LocalRun]) -> _Outcome:
        """One service. That it is there and says nothing of use is a finding, not a failure."""
        try:
            answer = ask(address, _ASK_SHARE * self.deadline_seconds)
            report = parse_json(answer.body) if answer.json else parse_text(answer.body)
        except NotApplicable:
            self._judges[address] = Judge()
            return _Outcome(())
        except CollectError as error:
            return _Outcome((Series(_UP, _place(address, run_of(None, runs)), 0),), str(error))
        run = run_of(report, runs)
        place = _place(address, run)
        judged = self._judges[address].judge(report)
        ranks = ranks_by_process(report, run)
        return _Outcome((Series(_UP, place, 1), *series_of(place, report, judged, ranks)))


def _place(address: Address, run: LocalRun | None) -> tuple[str, str]:
    return str(address), run.run if run is not None else ""
