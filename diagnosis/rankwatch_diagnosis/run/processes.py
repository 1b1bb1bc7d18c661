"""What the processes of the ranks show: stopped, blocked in the kernel, silent, or short of CPUs.

Where all ranks have come to a collective, no count tells which one holds it up. A rank whose process a
signal stopped does, or one that alone gives no answer: nobody else can wake them.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.writers import writer_of
from rankwatch_agent.sources.kernel_files import parse_kernel_file
from rankwatch_agent.sources.rank_process import BLOCKED, ENDED, STOPPED, ProcessFacts, read_facts, since
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from rankwatch_diagnosis.run.boxes import Boxes

CONTENDED_SHARE = 0.05
"""Part of their time that ranks wait for a CPU. On a host with CPUs to spare it stays below 0.01."""
_CONTENDED_PRESSURE = 0.2
"""Part of the last minute in which some task of the host waited for a CPU."""
_MOST_SHOWN = 64


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of the living ranks, as far as they are seen."""

    facts: Mapping[int, ProcessFacts] = field(default_factory=dict)
    """By rank."""
    silent: Set[int] = frozenset()
    """Ranks whose flight recorder took the question and gave no answer."""
    answered: int = 0
    """Ranks whose flight recorder answered."""
    pressure: float | None = None
    """Part of the last minute in which some task of this host waited for a CPU; None where not measured."""

    @property
    def stopped(self) -> frozenset[int]:
        """Ranks of which no thread runs."""
        return frozenset(rank for rank, each in self.facts.items() if each.stopped)


def read_processes(boxes: Mapping[int, Path], procfs: Path = Path("/proc")) -> dict[int, ProcessFacts]:
    """Return the processes that write these boxes; those that are not seen from here are left out.

    procfs: this process's own, whose process ids are those of the kernel's lock holders.
    """
    found = {}
    for rank, path in boxes.items():
        pid = writer_of(path)
        facts = None if pid is None else read_facts(procfs, pid)
        # It may have ended meanwhile, and another process may have its id.
        if facts is not None and writer_of(path) == pid:
            found[rank] = facts
    return found


def reread_processes(
    before: Mapping[int, ProcessFacts], procfs: Path = Path("/proc")
) -> dict[int, ProcessFacts]:
    """Return the same processes now; a blocked one counts only where it has been so all the time."""
    return {rank: since(each, read_facts(procfs, each.pid)) for rank, each in before.items()}


def with_processes(boxes: Boxes, found: HangVerdict, seen: Processes) -> HangVerdict:
    """Return the verdict with what the processes show.

    A stopped process is named wherever the run stands. What is blocked or silent is named only where it is
    the odd one and the waits name nobody, because it may be a victim.
    """
    halted = {rank: _halted(each) for rank, each in seen.facts.items() if each.state in {*STOPPED, ENDED}}
    if not found.stands:
        return found.noted([f"rank {rank} {reason}" for rank, reason in list(halted.items())[:_MOST_SHOWN]])
    if not halted and not found.ranks:
        halted = _odd_ones(boxes, seen)
    if not halted:
        return found
    ranks = tuple(sorted({*found.ranks, *halted}))
    reasons = found.evidence.get("reasons")
    known = dict(reasons) if isinstance(reasons, Mapping) else {}
    by_rank = {str(rank): "; ".join(filter(None, (known.get(str(rank)), halted.get(rank)))) for rank in ranks}
    evidence = {
        **found.evidence,
        "reasons": {rank: reason for rank, reason in by_rank.items() if reason},
        "halted_ranks": sorted(halted)[:_MOST_SHOWN],
    }
    state = State.HANG if found.state is State.INCONCLUSIVE else found.state
    return replace(found, state=state, ranks=ranks, evidence=evidence)


def _halted(facts: ProcessFacts) -> str:
    if facts.state == ENDED:
        return "has no main thread any more: it has ended (state Z), and its process lives on"
    by = "a debugger holds it" if facts.state == "t" else "a signal such as SIGSTOP stopped it"
    return f"does not run: its process is in state {facts.state}, {by}"


def _odd_ones(boxes: Boxes, seen: Processes) -> dict[int, str]:
    """Find ranks that alone are blocked in the kernel, or alone give no answer; none where many are."""
    blocked = {rank: each for rank, each in seen.facts.items() if each.state == BLOCKED}
    if blocked and 2 * len(blocked) < len(boxes.living):
        return {rank: _blocked(each) for rank, each in blocked.items()}
    if seen.silent and 2 * len(seen.silent) < len(seen.silent) + seen.answered:
        reason = "gives no answer, and its peers do: its process is stopped, or has no CPU"
        return dict.fromkeys(seen.silent, reason)
    return {}


def _blocked(facts: ProcessFacts) -> str:
    where = f", in {facts.wait_channel}" if facts.wait_channel else ""
    return f"is blocked in the kernel{where}: a thread of it stays in state D, and no signal wakes it"


def contention(boxes: Boxes, seen: Processes) -> dict[str, object]:
    """Return what shows that the ranks lack or lacked CPUs, ready for JSON; empty where they have enough.

    The ranks themselves must wait, not only some task of the host; and of late, not only when they began.
    What a rank has recorded itself counts first: it leaves out the time before its run.
    """
    of_processes = {rank: each.cpu_wait_share for rank, each in seen.facts.items()}
    of_boxes = {rank: each.now.cpu_wait_share for rank, each in boxes.by_rank.items()}
    recorded = {rank: share for rank, share in of_boxes.items() if share is not None}
    shares = {rank: share for rank, share in (of_processes | recorded).items() if share is not None}
    typical = median(shares.values()) if shares else 0.0
    if typical < CONTENDED_SHARE or (seen.pressure is not None and seen.pressure < _CONTENDED_PRESSURE):
        return {}
    found = {"cpu_wait_share": typical, "cpu_pressure_share": seen.pressure}
    return {name: value for name, value in found.items() if value is not None}


def lacks_cpus(found: Mapping[str, object]) -> str:
    """Return the sentence about contention of the host's CPUs."""
    share = found["cpu_wait_share"]
    pressure = found.get("cpu_pressure_share")
    of_host = f", and some task here did in {pressure:.0%} of the last minute" if pressure is not None else ""
    return f"CPUs are contended: the ranks wait {share:.0%} of their time for one{of_host}"


def cpu_pressure(procfs: Path = Path("/proc")) -> float | None:
    """Read in what part of the last minute a task waited for a CPU; None if the kernel does not measure."""
    try:
        return parse_kernel_file(procfs / "pressure" / "cpu", _parse_pressure)
    except (NotApplicable, CollectError):
        return None


def _parse_pressure(text: str) -> float:
    """Return avg60 of the line `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, percent as a share."""
    fields = dict(each.split("=", 1) for each in text.splitlines()[0].split()[1:])
    return float(fields["avg60"]) / 100.0
