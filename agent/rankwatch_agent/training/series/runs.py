"""The series of a run on this node: what it declares, and what rules need of all its ranks here.

Ranks are counted, and of what they have the newest or the oldest counts: in a run of 16,384 ranks the rules
read these of 2,048 nodes. Only living ranks speak, apart from their count: what an ended one left behind says
nothing about the run now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rankwatch.conventions.metrics import metric
from rankwatch.conventions.states import ENDED_STATES
from rankwatch.conventions.vocabulary import TOKENS, Capability, Unseen
from rankwatch_agent.runtime.collector import Series, Wall, sample
from rankwatch_agent.training.boxes.follower import RankFollower
from rankwatch_agent.training.boxes.totals import RankTotals
from rankwatch_agent.training.checkpoints.operations import Checkpoint
from rankwatch_agent.training.series.selection import half_series

_SAVE = "save"
_NOTHING_SAVED = Checkpoint(ended=-1.0, step=-1)
"""A rank that saves for the first time and is not done yet."""


def run_series(run: str, ranks: Collection[RankFollower], tracker_url: str = "") -> Iterator[Series]:
    """Yield what the run declares of itself, by the rank that started last: it may be a new attempt."""
    yield from capability_series(run, (each.now.capabilities for each in ranks))
    latest = max(ranks, key=lambda each: each.header.started_monotonic)
    header = latest.header
    declared = (header.identity.short_name, header.run_class, str(latest.owner), header.contact, tracker_url)
    yield sample("rankwatch_run_info", (run, *declared), 1)
    yield sample("rankwatch_run_attempt", (run,), header.identity.attempt)
    yield sample("rankwatch_run_world_size", (run,), header.identity.world_size)
    overlapped = max(each.totals.checkpoints.overlapped for each in ranks)
    yield sample("rankwatch_checkpoint_saves_overlapped_total", (run,), overlapped)
    if header.checkpoint_interval_seconds is not None:
        yield sample("rankwatch_run_checkpoint_interval_seconds", (run,), header.checkpoint_interval_seconds)


def sum_series(run: str, ranks: Sequence[RankFollower], wall: Wall) -> Iterator[Series]:
    """Yield the series of a run on this node; `wall` turns monotonic time into Unix time."""
    for state, count in Counter(each.state for each in ranks).items():
        yield sample("rankwatch_node_ranks", (run, state), count)
    yield from _totals(run, [each.totals for each in ranks], [each.missed for each in ranks])
    yield from _tokens(run, ranks)
    living = [each for each in ranks if each.state not in ENDED_STATES]
    if not living:
        return
    starts = [each.header.started_monotonic for each in living]
    progress = max(each.totals.last_progress for each in living)
    yield sample("rankwatch_node_first_start_timestamp_seconds", (run,), wall(min(starts)))
    yield sample("rankwatch_node_last_start_timestamp_seconds", (run,), wall(max(starts)))
    yield sample("rankwatch_node_progress_timestamp_seconds", (run,), wall(max(progress, *starts)))
    yield from _living(run, living)
    timeouts = [each.timeout for each in living]
    known = [each for each in timeouts if each is not None]
    if len(known) == len(timeouts):
        yield sample("rankwatch_node_progress_timeout_seconds", (run,), max(known))
    yield from _checkpoint_series(run, living, wall)


def _totals(run: str, ranks: Sequence[RankTotals], missed: Sequence[int]) -> Iterator[Series]:
    """Yield counters: of steps and saves those of the rank with most, because ranks take them together."""
    saves = [each.checkpoints.operations[_SAVE] for each in ranks]
    values = {
        "rankwatch_node_steps_total": max(each.steps.steps for each in ranks),
        "rankwatch_node_records_total": sum(each.records for each in ranks),
        "rankwatch_node_records_missed_total": sum(missed),
        "rankwatch_node_checkpoint_saves_total": max(each.succeeded for each in saves),
        "rankwatch_node_checkpoint_save_seconds_total": max(each.seconds for each in saves),
        "rankwatch_node_checkpoint_save_blocking_seconds_total": max(each.blocking_seconds for each in saves),
    }
    for name, value in values.items():
        yield sample(name, (run,), value)
    steps = [each.steps.last_step for each in ranks if each.steps.last_step >= 0]
    if steps:
        yield sample("rankwatch_node_step", (run,), max(steps))


def _tokens(run: str, ranks: Sequence[RankFollower]) -> Iterator[Series]:
    """Yield tokens by replica: its ranks have the same; where ranks state none, each has its own."""
    replicas: dict[str, list[float]] = {}
    for each in ranks:
        tokens = each.totals.steps.work_done.by_unit.get(TOKENS)
        if tokens is not None:
            replicas.setdefault(each.replica, []).append(tokens)
    for replica, tokens_of in replicas.items():
        total = max(tokens_of) if replica else sum(tokens_of)
        yield sample("rankwatch_node_tokens_total", (run, replica), total)


def _living(run: str, ranks: Sequence[RankFollower]) -> Iterator[Series]:
    """Yield what rules ask of the ranks that run now."""
    yield sample("rankwatch_node_gpus", (run,), sum(bool(each.gpu) for each in ranks))
    values = {
        "target_steps": [each.now.target_steps or each.header.target_steps for each in ranks],
        "restored_step": [each.totals.checkpoints.restored_step for each in ranks],
    }
    for name, given in values.items():
        known = [each for each in given if each is not None]
        if known and max(known) >= 0 and (name != "target_steps" or max(known) > 0):
            yield sample(f"rankwatch_node_{name}", (run,), max(known))
    sizes = [each.totals.checkpoints.bytes for each in ranks]
    if any(size is not None for size in sizes):
        yield sample("rankwatch_node_checkpoint_bytes", (run,), sum(size or 0 for size in sizes))


def half_writes(run: str, ranks: Sequence[RankFollower]) -> Iterator[Series]:
    """Yield what speaks for the last writes of all living ranks of a large run on this node."""
    writes = [each.totals.checkpoints.write_seconds for each in ranks if each.state not in ENDED_STATES]
    known = (each for each in writes if each is not None)
    yield from half_series("rankwatch_half_checkpoint_last_write_seconds", (run,), known)


def half_losses(run: str, ranks: Sequence[RankFollower]) -> Iterator[Series]:
    """Yield what speaks for the losses of all living ranks of a large run on this node."""
    living = (each.totals.learning.loss for each in ranks if each.state not in ENDED_STATES)
    losses = [each for each in living if each.count]
    trends = [each.trend for each in losses if each.trend > 0.0]
    yield from half_series("rankwatch_half_loss_trend", (run,), trends)
    yield from half_series("rankwatch_half_loss_deviation", (run,), [each.deviation for each in losses])


def _checkpoint_series(run: str, living: Sequence[RankFollower], wall: Wall) -> Iterator[Series]:
    """Yield the oldest save, of each rank's last, as complete on this node; what one committed,
    everywhere."""
    checkpoints = [each.totals.checkpoints for each in living]
    saved = [
        each.saved or _NOTHING_SAVED
        for each in checkpoints
        if each.saved is not None or each.saves_under_way()
    ]
    if saved:
        yield sample("rankwatch_node_checkpoint_saved_step", (run,), min(each.step for each in saved))
        ended = -1.0 if _NOTHING_SAVED in saved else wall(min(each.ended for each in saved))
        yield sample("rankwatch_node_checkpoint_saved_timestamp_seconds", (run,), ended)
    committed = [each.committed for each in checkpoints if each.committed is not None]
    if committed:
        yield sample("rankwatch_node_checkpoint_committed_step", (run,), max(each.step for each in committed))
        ended = wall(max(each.ended for each in committed))
        yield sample("rankwatch_node_checkpoint_committed_timestamp_seconds", (run,), ended)


def of_run(
    ranks: Iterable[Mapping[Capability, Unseen | None]],
) -> dict[Capability, Unseen | None]:
    """Return capability -> why ranks do not see it, by most of those that do not; None where all see it.

    Left out is what no rank knows yet.
    """
    listed = list(ranks)
    found: dict[Capability, Unseen | None] = {}
    for capability in Capability:
        states = [each[capability] for each in listed if capability in each]
        reasons = Counter(why for why in states if why is not None)
        if states:
            found[capability] = reasons.most_common(1)[0][0] if reasons else None
    return found


def capability_series(run: str, ranks: Iterable[Mapping[Capability, Unseen | None]]) -> Iterator[Series]:
    """Yield one series for each capability that is known; none for a run of explicit hooks."""
    declared = metric("rankwatch_run_capability_visible")
    for capability, why in of_run(ranks).items():
        yield Series(declared, (run, capability, why or ""), 1 if why is None else 0)
