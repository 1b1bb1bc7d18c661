"""Collector `nccl_ras`: the health of a job's NCCL communicators, as NCCL's own RAS service reports it.

One request reaches all processes of a job, so only one agent sends it: a service on the node itself is asked
while rank 0 of a run lives here. A service on another host is always asked; configure such an address on one
agent only.
"""

from __future__ import annotations

import logging
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.tenants import is_tenant, run_label, tenants_of
from rankwatch.conventions.metrics import metric
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.runtime.turns import share
from rankwatch_agent.sources.nccl_ras.client import Address, ask, parse_addresses
from rankwatch_agent.sources.nccl_ras.communicators import (
    SEVERITY,
    CommunicatorHealth,
    HealthTracker,
    Process,
    Report,
    State,
)
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_agent.sources.nccl_ras.text_form import parse_text
from rankwatch_agent.sources.shared import NodeShared

logger = logging.getLogger(__name__)

_UP = metric("rankwatch_nccl_ras_up")

MAX_EXPORTED = 32
"""Communicators with series of their own: the worst, then the largest. The series by state count all."""
MAX_RANKS = 64
"""Ranks named per answer, over all communicators."""
_MAX_RUNS = 16
_MAX_LOCAL_RANKS = 64
_MOST_NAMES = 1 << 18
"""Names of a directory that are looked at, in half a second."""
_MOST_FOLDERS = 1024
"""Folders that are looked into."""
_MOST_NAMES_OF_RUN = 4096
_LEADER = f"0{layout.SUFFIX}"
_DEADLINE_SHARE = 0.8
"""Part of the collector's deadline that a service may use."""

ServiceLabels = tuple[str, str]
"""Address of the service, and the run."""


class _Outcome(NamedTuple):
    series: tuple[Series, ...]
    error: str = ""


class LocalRun(NamedTuple):
    """A run whose rank 0 lives on this node."""

    run: str
    owner: int
    """User id."""
    world_size: int
    ranks: Mapping[int, int]
    """Process id, as the process sees it -> rank, of the ranks on this node."""


# One query reaches every process of the job, and waits ten seconds for a silent one.
@source(interval_seconds=60.0, deadline_seconds=20.0)
def nccl_ras(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield NcclRasCollector(addresses=config.nccl_ras_address, directory=config.directory, schedule=schedule)


class NcclRasCollector:
    """Asks several services in parallel.

    addresses: as in the setting nccl_ras_address; a wrong one raises FieldError at once.
    directory: holds `<run>/<rank>.blackbox`.
    """

    name = "nccl_ras"

    def __init__(self, *, addresses: tuple[str, ...], directory: Path, schedule: Schedule) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._directory = directory
        self._trackers = {address: HealthTracker() for address in parse_addresses(addresses)}
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Ask each service once. Raises NotApplicable where none is to be asked or none listens."""
        if not self._trackers:
            raise NotApplicable("no nccl_ras_address is set")
        runs = local_runs(self._directory)
        asked = [address for address in self._trackers if runs or not address.local]
        for address in self._trackers.keys() - set(asked):
            self._trackers[address] = HealthTracker()
        if not asked:
            raise NotApplicable("no run has its rank 0 on this node")
        with ThreadPoolExecutor(len(asked)) as pool:
            outcomes = list(pool.map(lambda address: self._ask(address, runs), asked))
        for outcome in outcomes:
            if outcome.error and self._log_limit.allows(outcome.error):
                logger.warning("collector %s: %s", self.name, outcome.error)
        series = [each for outcome in outcomes for each in outcome.series]
        if not series:
            raise NotApplicable(f"nothing listens on {', '.join(map(str, asked))}")
        return Collection(tuple(series))

    def _ask(self, address: Address, runs: Sequence[LocalRun]) -> _Outcome:
        """Ask one service.

        A service without a usable answer is a finding, not a failure of the collector. Any user may listen on
        this node, so an answer from here concerns the runs of who gave it, and a missing one nobody's.
        """
        possible = () if address.local else runs
        try:
            answer = ask(address, _DEADLINE_SHARE * self.deadline_seconds)
            if answer.peer.on_node:
                possible = [each for each in runs if each.owner == answer.peer.user]
            report = parse_json(answer.body) if answer.json else parse_text(answer.body)
        except NotApplicable:
            self._trackers[address] = HealthTracker()
            return _Outcome(())
        except CollectError as error:
            return _Outcome((Series(_UP, _service_labels(address, run_of(None, possible)), 0),), str(error))
        run = run_of(report, possible)
        labels = _service_labels(address, run)
        health = self._trackers[address].update(report)
        series = report_series(labels, report, health, global_ranks(report, run))
        return _Outcome((Series(_UP, labels, 1), *series))


def _service_labels(address: Address, run: LocalRun | None) -> ServiceLabels:
    return str(address), run.run if run is not None else ""


def report_series(
    service: ServiceLabels,
    report: Report,
    health: Sequence[CommunicatorHealth],
    ranks: Mapping[Process, int],
) -> Iterator[Series]:
    """Yield the series of one answer, a bounded number whatever the size of the job.

    ranks: global rank by process, as far as known.
    """
    for absence, number in report.processes_missing.items():
        yield sample("rankwatch_nccl_processes_missing", (*service, absence), number)
    for each in health[:MAX_EXPORTED]:
        yield from _communicator_series(service, each)
    of_ranks = (found for each in health[:MAX_EXPORTED] for found in _rank_series(service, each, ranks))
    yield from islice(of_ranks, MAX_RANKS)


def _communicator_series(service: ServiceLabels, health: CommunicatorHealth) -> Iterator[Series]:
    each = health.communicator
    labels = (*service, each.name)
    yield sample("rankwatch_nccl_communicator_state", (*labels, health.state, health.reason), 1)
    yield sample("rankwatch_nccl_communicator_ranks", labels, each.size)
    yield sample("rankwatch_nccl_communicator_ranks_missing", labels, each.missing)
    if each.spread is not None:
        yield sample("rankwatch_nccl_communicator_launch_spread", labels, each.spread)
        yield sample("rankwatch_nccl_communicator_ranks_behind", labels, each.behind)
    if each.launches is not None:
        yield sample("rankwatch_nccl_communicator_launches_total", labels, each.launches)


def _rank_series(
    service: ServiceLabels, health: CommunicatorHealth, ranks: Mapping[Process, int]
) -> Iterator[Series]:
    each = health.communicator
    for missing in each.named_missing:
        labels = (*service, each.name, str(missing.rank), _rank_label(missing.process, ranks))
        yield sample("rankwatch_nccl_rank_missing", (*labels, missing.absence), 1)
    # In a run that makes progress some rank is always behind, each time another.
    if SEVERITY.index(health.state) >= SEVERITY.index(State.SUSPECT):
        for behind in each.named_behind:
            labels = (*service, each.name, str(behind.rank), _rank_label(behind.process, ranks))
            yield sample("rankwatch_nccl_rank_launches_behind", labels, behind.launches)


def _rank_label(process: Process | None, ranks: Mapping[Process, int]) -> str:
    rank = ranks.get(process) if process is not None else None
    return "" if rank is None else str(rank)


def local_runs(directory: Path) -> list[LocalRun]:
    """Return the runs below a directory of black boxes whose rank 0 is alive.

    Unreadable boxes are skipped, and so are those in a directory of another user. Owners of many runs do not
    push out others, and no link is followed.
    """
    folders = [each for base in (directory, *tenants_of(directory)) for each in _folders_in(base)]
    newest, _ = share(sorted(folders, reverse=True), owner=lambda each: each.owner, most=_MOST_FOLDERS)
    leading, _ = share(filter(_has_leader, newest), owner=lambda each: each.owner, most=4 * _MAX_RUNS)
    found: list[LocalRun] = []
    for each in leading:
        first = _living(each.path / _LEADER, each.owner)
        if first is None:
            continue
        world_size, pid = first
        ranks = {pid: 0}
        for path in _boxes_of(each)[:_MAX_LOCAL_RANKS]:
            other = _living(path, each.owner)
            if other is not None:
                ranks.setdefault(other[1], int(path.stem))
        found.append(LocalRun(run_label(each.path, directory, each.owner), each.owner, world_size, ranks))
    return found[:_MAX_RUNS]


class _RunFolder(NamedTuple):
    changed: int
    """Its mtime in nanoseconds."""
    path: Path
    owner: int
    """User id."""


def _folders_in(base: Path) -> Iterator[_RunFolder]:
    """Yield the folders of runs in a directory, a tenant's or that of all; none if it cannot be read."""
    with suppress(OSError), Folder.open(base, follow=True) as folder:
        for name in islice(folder.names(), _MOST_NAMES):
            with suppress(FileNotFoundError):
                status = folder.status_of(name)
                if stat.S_ISDIR(status.st_mode) and not is_tenant(name, status):
                    yield _RunFolder(status.st_mtime_ns, base / name, status.st_uid)


def _has_leader(run: _RunFolder) -> bool:
    with suppress(OSError), Folder.open(run.path) as folder:
        return folder.status_of(_LEADER).st_uid == run.owner
    return False


def _boxes_of(run: _RunFolder) -> list[Path]:
    """Return the boxes of the ranks of this node, without that of rank 0."""
    with suppress(OSError), Folder.open(run.path) as folder:
        boxes = (run.path / name for name in islice(folder.names(), _MOST_NAMES_OF_RUN) if name != _LEADER)
        return sorted(each for each in boxes if each.suffix == layout.SUFFIX and each.stem.isdecimal())
    return []


def _living(path: Path, owner: int) -> tuple[int, int] | None:
    """Return world size and process id of a black box whose name fits its content and whose writer lives."""
    try:
        reader = Reader(path, follow_folder=False)
    except BlackBoxError:
        return None
    try:
        identity = reader.header.identity
        named = identity.run == path.parent.name and str(identity.rank) == path.stem
        named = named and reader.owner == owner
        return (identity.world_size, reader.header.pid) if named and reader.writer_alive() else None
    except OSError:
        return None
    finally:
        reader.close()


def run_of(report: Report | None, runs: Sequence[LocalRun]) -> LocalRun | None:
    """Return the run that a service belongs to, or None where that is unclear.

    Where the answer has process ids, all living local ranks of the run must be among them. Otherwise the run
    must be the only one.
    """
    if report is None or not report.pids:
        return runs[0] if len(runs) == 1 else None
    fitting = [run for run in runs if run.ranks.keys() <= report.pids]
    return fitting[0] if len(fitting) == 1 else None


def global_ranks(report: Report, run: LocalRun | None) -> Mapping[Process, int]:
    """Return global ranks from the largest communicator, if that is the run's default process group.

    It is, where it is as large as the run and has each local rank at its place. Otherwise returns no rank.
    """
    if run is None or len(report.largest) != run.world_size:
        return {}
    places = {(process.pid, rank) for process, rank in report.largest.items()}
    return report.largest if set(run.ranks.items()) <= places else {}
