"""Collector `nccl_ras`: the health of a job's NCCL communicators, as NCCL's own RAS service tells it.

One question goes to all processes of the job, so only one agent asks: a service on the node itself is asked
while rank 0 of a run lives here. A service on another host is asked always; such an address belongs into the
settings of one agent.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
from rankwatch.conventions import metric
from rankwatch.errors import BlackBoxError
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.sources.nccl_ras.client import Address, ask, parse_addresses
from rankwatch_agent.sources.nccl_ras.communicators import SEVERITY, Judge, Judged, Process, Report, State
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_agent.sources.nccl_ras.text_form import parse_text

logger = logging.getLogger(__name__)

MAX_EXPORTED = 32
"""Communicators with series of their own: the worst first, then the largest. All are counted by state."""
MAX_RANKS = 64
"""Ranks named in one answer, over all of its communicators."""

_INFO = metric("rankwatch_nccl_info")
_TIMEOUTS = metric("rankwatch_nccl_ras_timeouts")
_COMMUNICATORS = metric("rankwatch_nccl_communicators")
_PROCESSES = metric("rankwatch_nccl_processes_missing")
_STATE = metric("rankwatch_nccl_communicator_state")
_SIZE = metric("rankwatch_nccl_communicator_ranks")
_MISSING = metric("rankwatch_nccl_communicator_ranks_missing")
_BEHIND = metric("rankwatch_nccl_communicator_ranks_behind")
_SPREAD = metric("rankwatch_nccl_communicator_launch_spread")
_LAUNCHES = metric("rankwatch_nccl_communicator_launches_total")
_RANK_BEHIND = metric("rankwatch_nccl_rank_launches_behind")
_RANK_MISSING = metric("rankwatch_nccl_rank_missing")

Place = tuple[str, str]
"""Address of the service and run."""


def series_of(
    place: Place, report: Report, judged: Sequence[Judged], ranks: Mapping[Process, int]
) -> Iterator[Series]:
    """Job, then communicators, then ranks; `ranks`: global ranks by process, where they are known."""
    yield Series(_INFO, (*place, report.version), 1)
    yield Series(_TIMEOUTS, place, report.timeouts)
    states = Counter(each.state for each in judged)
    states[State.UNKNOWN] += report.unnamed
    for state in SEVERITY:
        yield Series(_COMMUNICATORS, (*place, state), states[state])
    for absence, number in report.processes_missing.items():
        yield Series(_PROCESSES, (*place, absence), number)
    for each in judged[:MAX_EXPORTED]:
        yield from _of_communicator(place, each)
    named = (found for each in judged[:MAX_EXPORTED] for found in _of_ranks(place, each, ranks))
    for _, found in zip(range(MAX_RANKS), named, strict=False):
        yield found


def _of_communicator(place: Place, judged: Judged) -> Iterator[Series]:
    each = judged.communicator
    key = (*place, each.name)
    yield Series(_STATE, (*key, judged.state, judged.reason), 1)
    yield Series(_SIZE, key, each.size)
    yield Series(_MISSING, key, each.missing)
    if each.spread is not None:
        yield Series(_SPREAD, key, each.spread)
        yield Series(_BEHIND, key, each.behind)
    if each.launches is not None:
        yield Series(_LAUNCHES, key, each.launches)


def _of_ranks(place: Place, judged: Judged, ranks: Mapping[Process, int]) -> Iterator[Series]:
    each = judged.communicator
    for missing in each.named_missing:
        key = (*place, each.name, str(missing.rank), _global(missing.process, ranks))
        yield Series(_RANK_MISSING, (*key, missing.absence), 1)
    # In a run that moves there is always someone behind, each time another.
    if SEVERITY.index(judged.state) >= SEVERITY.index(State.SUSPECT):
        for late in each.late:
            key = (*place, each.name, str(late.rank), _global(late.process, ranks))
            yield Series(_RANK_BEHIND, key, late.behind)


def _global(process: Process | None, ranks: Mapping[Process, int]) -> str:
    rank = ranks.get(process) if process is not None else None
    return "" if rank is None else str(rank)


_MAX_RUNS = 16
_MAX_RANKS = 64


class LocalRun(NamedTuple):
    """A run that is led from here."""

    run: str
    world_size: int
    ranks: Mapping[int, int]
    """Process id, as the process sees it -> rank; of the ranks that live here."""


def local_runs(directory: Path) -> list[LocalRun]:
    """The runs below a directory of black boxes whose rank 0 is alive; what cannot be read is left out."""
    found = []
    for leader in sorted(directory.glob(f"*/0{layout.SUFFIX}"))[: 4 * _MAX_RUNS]:
        first = _living(leader)
        if first is None:
            continue
        world_size, pid = first
        ranks = {pid: 0}
        for path in sorted(leader.parent.glob(f"*{layout.SUFFIX}"))[:_MAX_RANKS]:
            other = _living(path) if path != leader and path.stem.isdecimal() else None
            if other is not None:
                ranks.setdefault(other[1], int(path.stem))
        found.append(LocalRun(leader.parent.name, world_size, ranks))
    return found[:_MAX_RUNS]


def _living(path: Path) -> tuple[int, int] | None:
    """World size and process id of a black box in its place whose writer lives."""
    try:
        reader = Reader(path)
    except BlackBoxError:
        return None
    try:
        identity = reader.header.identity
        named = identity.run == path.parent.name and str(identity.rank) == path.stem
        return (identity.world_size, reader.header.pid) if named and reader.writer_alive() else None
    except OSError:
        return None
    finally:
        reader.close()


def run_of(report: Report | None, runs: Sequence[LocalRun]) -> LocalRun | None:
    """The run that a RAS service belongs to; None where that cannot be told.

    By the process ids where the answer has them: all living ranks of the run here must be among them. Else
    only where there is no other run.
    """
    if report is None or not report.pids:
        return runs[0] if len(runs) == 1 else None
    fitting = [run for run in runs if run.ranks.keys() <= report.pids]
    return fitting[0] if len(fitting) == 1 else None


def ranks_by_process(report: Report, run: LocalRun | None) -> Mapping[Process, int]:
    """Global ranks, out of the largest communicator where that is the run's default process group.

    It is taken for it where it is as large as the run and has each rank that lives here at its place.
    """
    if run is None or len(report.largest) != run.world_size:
        return {}
    places = {(process.pid, rank) for process, rank in report.largest.items()}
    return report.largest if set(run.ranks.items()) <= places else {}


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
