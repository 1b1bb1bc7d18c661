"""A Prometheus that holds the recorded runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from support.recorded.runs import GPU_NODE, GPU_RUN, INTERVAL_SECONDS, first_moment, last_moment, read
from support.servers.prometheus import backfill, get_json, prometheus

_FLAGS = ("--storage.tsdb.retention.time=100y", "--query.lookback-delta=1s")
"""The recording may be old. It holds no staleness markers, so what ended must not be seen for longer."""


class Loaded(NamedTuple):
    """A Prometheus with the recording."""

    url: str
    start: float
    """Moment of the first sample, in seconds since 1970."""
    end: float
    """Moment of the last sample."""

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series of a query over the whole recording; an error of the query fails the test."""
        asked = {"query": expression, "start": f"{self.start}", "end": f"{self.end}"}
        asked["step"] = f"{INTERVAL_SECONDS}"
        series: list[dict[str, Any]] = get_json(f"{self.url}/api/v1/query_range", asked)["data"]["result"]
        return series


def _is_of(line: str, runs: Collection[str]) -> bool:
    """True for series of these runs, and for alerts on the node of which one has all GPUs."""
    of_node = line.startswith("ALERTS") and f'node="{GPU_NODE}"' in line
    return any(f'run="{run}"' in line for run in runs) or (of_node and GPU_RUN.run in runs)


@contextmanager
def loaded_prometheus(directory: Path, without: Collection[str] = ()) -> Iterator[Loaded]:
    """Prometheus on the recording, scraping nothing. `without`: runs that it shall not know."""
    lines = [line for line in read() if not _is_of(line, without)]
    backfill(lines, directory)
    with prometheus({"global": {}}, directory, _FLAGS) as url:
        yield Loaded(url, first_moment(lines), last_moment(lines))
