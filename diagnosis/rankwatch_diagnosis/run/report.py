"""The verdict about a run as JSON, and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rankwatch.conventions.states import Cause
from rankwatch.conventions.vocabulary import Capability
from rankwatch.untrusted.text import printable
from rankwatch_agent.sources.rank_process import BLOCKED, ENDED, STOPPED
from rankwatch_diagnosis.hang.verdict import State
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.loss.detection import as_json as loss_as_json
from rankwatch_diagnosis.run.box_records import visible_lines
from rankwatch_diagnosis.run.losses import loss_parts
from rankwatch_diagnosis.run.processes import CONTENDED_SHARE, lacks_cpus
from rankwatch_diagnosis.run.replicas import replica_parts
from rankwatch_diagnosis.run.step_rows import STEPS_BY_PLACE
from rankwatch_diagnosis.run.verdict import GONE, RunState, RunVerdict, worst_anomaly
from rankwatch_diagnosis.run.witnesses import witness_lines
from rankwatch_diagnosis.straggler.report import rank_seconds
from rankwatch_diagnosis.straggler.verdict import FoundCause, Verdict
from rankwatch_diagnosis.straggler.verdict import as_json as straggler_as_json
from rankwatch_diagnosis.words import counted, listed

_RED_STATES = (RunState.STALLED, RunState.LOST, RunState.FAILED)
_GREEN_STATES = (RunState.RUNNING, RunState.FINISHED)
_RANKS_SHOWN = 16
_GROUPS_SHOWN = 5
_CAUSES_SHOWN = 5
_DAMAGED_SHOWN = 3
_ANOMALIES_SHOWN = 5


def as_json(verdict: RunVerdict) -> dict[str, object]:
    """Return the object of `--json`. Numbers that are NaN or infinite become null."""
    hang, straggler = verdict.hang, verdict.straggler
    parts: dict[str, object] = {
        "run": verdict.run,
        "state": verdict.state.value,
        "ranks": verdict.ranks,
        "why": verdict.why,
        "hang": {**vars(hang), "groups": [vars(each) for each in hang.groups]},
        "straggler": None if straggler is None else straggler_as_json(straggler),
        "phases": verdict.phases,
        "contention": verdict.contention,
        "loss": None if verdict.loss is None else {"rank": verdict.loss[0], **loss_as_json(verdict.loss[1])},
        "losses": verdict.losses._asdict(),
        "replicas": verdict.replicas.as_json(),
        "capabilities": {each: why or "visible" for each, why in verdict.capabilities.items()},
        "trackers": verdict.trackers,
        "ended_attempts": [each.as_json() for each in verdict.ended_attempts],
        "progress": verdict.progress,
        "checkpoints": verdict.checkpoints,
        "ranks_seen": verdict.ranks_seen,
        "sources": verdict.sources,
    }
    return {name: json_value(value) for name, value in parts.items()}


def colour_of(verdict: RunVerdict) -> str:
    """Choose the headline's colour: red for what needs somebody, green for what is well, else yellow."""
    well = verdict.state in _GREEN_STATES and not verdict.replicas.differing
    return "red" if verdict.state in _RED_STATES else "green" if well else "yellow"


def lines(verdict: RunVerdict) -> Iterator[str]:
    """Yield a headline, then the evidence. Names in the boxes may hold anything."""
    yield f"{verdict.state.value.upper()}: {verdict.why}"
    yield ""
    yield f"run:         {verdict.run}, {_sources(verdict.sources)}"
    for each in verdict.ended_attempts:
        yield f"attempt {each.number + 1:<5}{each.words()}"
    yield f"progress:    {progress_words(verdict)}"
    yield f"checkpoints: {checkpoint_words(verdict.checkpoints)}"
    yield f"loss:        {loss_words(verdict)}"
    yield from (f"             {each}" for each in loss_parts(verdict.losses))
    others = dict(verdict.capabilities)
    others.pop(Capability.REPLICAS, None)  # they have a line of their own
    yield from visible_lines(others)
    yield from _replicas(verdict)
    if verdict.trackers:
        yield f"tracker:     {', '.join(verdict.trackers)}"
    yield f"slowdown:    {slowdown_words(verdict.straggler)}"
    yield from witness_lines(verdict.straggler)
    if verdict.straggler is not None and STEPS_BY_PLACE in verdict.straggler.evidence:
        yield "             steps are counted from the start of the process: their numbers begin again"
    yield from other_causes(verdict.straggler)
    if verdict.contention:
        yield f"cpus:        {lacks_cpus(verdict.contention)}"
    yield from time_lines(verdict)
    yield f"waiting:     {waiting_words(verdict)}"
    yield from waiting_evidence(verdict)
    yield "ranks:"
    yield from _ranks(verdict)
    if notes := note_parts(verdict):
        yield "notes:"
        yield from (f"  {each}" for each in notes)


def _sources(sources: Mapping[str, object]) -> str:
    attempt = f"attempt {sources['attempt']}, " if sources["attempt"] else ""
    hosts = counted(sources["hosts"], "host")
    parts = f"{attempt}{sources['boxes']} of {sources['world_size']} ranks on {hosts}"
    recorders = sources["flight_recorders"]
    if recorders:
        parts += f", {counted(recorders, 'flight recorder')}"
    return f"{parts}, copies of black boxes" if sources["copies"] else parts


def progress_words(verdict: RunVerdict) -> str:
    """Say how far the run is, and how fast."""
    progress = verdict.progress
    target = progress.get("target_steps")
    parts = [f"step {progress['step']}" + (f" of {target}" if target else "")]
    if progress["slowest_rank_step"] != progress["step"]:
        parts.append(f"the slowest rank at {progress['slowest_rank_step']}")
    for name, text in (
        ("step_seconds", "{:.4g} s a step"),
        ("tokens_per_second", "{:,.0f} tokens/s"),
        ("remaining_seconds", "{:,.0f} s left at this pace"),
    ):
        # What does not run has no pace.
        if name in progress and (name != "remaining_seconds" or verdict.state is RunState.RUNNING):
            parts.append(text.format(progress[name]))
    return ", ".join(parts)


def checkpoint_words(found: Mapping[str, object]) -> str:
    """Return the last good checkpoint, failures, and what is complete."""
    good = found.get("last_good")
    standing = list(_standing(found))
    if not isinstance(good, Mapping) and "operations" not in found and not standing:
        return "none in the boxes"
    parts = [f"last good one of step {good['step']}" if isinstance(good, Mapping) else "no good one"]
    if "last_good_age_seconds" in found:
        parts.append(f"{found['last_good_age_seconds']:,.0f} s old")
    parts.append(counted(found["failure_count"], "failure"))
    return ", ".join((*parts, *standing))


def _standing(found: Mapping[str, object]) -> Iterator[str]:
    damaged = found.get("agent_found_damaged")
    for each in damaged[-_DAMAGED_SHOWN:] if isinstance(damaged, list) else ():
        place = ", ".join(filter(None, (each["file"], each["tensor"])))
        yield printable(f"damaged: step {each['step']} ({each['path']}: {place}: {each['damage']})")
    stages = found.get("failures_by_stage")
    if isinstance(stages, Mapping):
        yield "failed saves by stage: " + " ".join(f"{stage} {count}" for stage, count in stages.items())
    for name, text in (
        ("failures_after_training_went_on", "{} of them after training had gone on"),
        ("newest_complete_step", "complete up to step {}"),
        ("agent_verified_step", "verified by the agent up to step {}"),
        ("unfinished_saves", "unfinished saves: {}"),
        ("restored_step", "resumed from step {}"),
        ("steps_lost", "steps lost: {}"),
        ("resumed_although_complete_step", "although step {} is complete"),
    ):
        if name in found:
            yield text.format(found[name])


def loss_words(verdict: RunVerdict) -> str:
    """Return the worst that was found in the loss."""
    if verdict.loss is None:
        why = verdict.capabilities.get(Capability.LOSS)
        return "not reported" if why is None else f"not visible, because {why.sentence}"
    rank, found = verdict.loss
    span = f"{found.counts.rows:,} steps of rank {rank}"
    worst = worst_anomaly(verdict)
    if worst is None:
        return f"no anomaly in {span}"
    anomalies = [each for each in found.anomalies if each.severity is worst]
    parts = ", ".join(f"{each.kind.value} at step {each.step}" for each in anomalies[:_ANOMALIES_SHOWN])
    more = f" and {len(anomalies) - _ANOMALIES_SHOWN} more" if len(anomalies) > _ANOMALIES_SHOWN else ""
    calm = "; nothing to do" if worst is Severity.INFO else ""
    return f"{worst.value}: {parts}{more}, in {span}{calm}"


def _replicas(verdict: RunVerdict) -> Iterator[str]:
    parts = replica_parts(verdict.replicas)
    head = "replicas:    "
    for part in parts[:_GROUPS_SHOWN]:
        yield f"{head}{part}"
        head = " " * len(head)
    if len(parts) > _GROUPS_SHOWN:
        yield f"{head}and {len(parts) - _GROUPS_SHOWN} more; --json shows them"


def slowdown_words(found: Verdict | None) -> str:
    """Return the cause of a slowdown, and what it costs."""
    if found is None:
        return "not judged: NumPy is not installed (in a clone, pip install '.[diagnosis]' brings it)"
    if found.cause in (Cause.NONE, Cause.INCONCLUSIVE):
        parts = [found.cause.value]
        if why := found.evidence.get("why"):
            parts.append(str(why))
        if suspected := _suspected(found):
            parts.append(suspected)
        return ": ".join(parts)
    return _cause(found)


def other_causes(found: Verdict | None) -> Iterator[str]:
    """Yield the causes beside the first."""
    others = () if found is None else found.others
    for each in others[:_CAUSES_SHOWN]:
        yield f"             also {_cause(each)}"
    if len(others) > _CAUSES_SHOWN:
        yield f"             and {len(others) - _CAUSES_SHOWN} more; --json shows them"


def _cause(found: Verdict | FoundCause) -> str:
    whom = f" {listed(found.ranks)}" if found.ranks else ""
    if found.stages:
        whom = f" stage {', '.join(map(str, found.stages))}"
    return f"{found.cause_and_phase}{whom}{_since(found)}: {_cost(found)}"


def _suspected(found: Verdict) -> str:
    """Name the suspects of an unclear slowdown, each with its excess, and what it costs."""
    suspects = found.evidence.get("suspected_ranks")
    if not isinstance(suspects, list) or not suspects:
        return ""
    shown = ", ".join(
        f"rank {each['rank']} is {each['slower_by_ratio']:.1%} slower" for each in suspects[:_RANKS_SHOWN]
    )
    return f"{shown}{_since(found)}, and that costs {_cost(found)}"


def _since(found: Verdict | FoundCause) -> str:
    return "" if found.first_step is None else f" since step {found.first_step}"


def _cost(found: Verdict | FoundCause) -> str:
    lost = rank_seconds(found.lost_rank_seconds or 0.0)
    most = "at most " if isinstance(found, Verdict) and found.is_bound else ""
    return f"{most}{(found.slowdown or 1.0) - 1.0:.1%}, {lost} rank-seconds lost"


def waiting_words(verdict: RunVerdict) -> str:
    """Say whom the ranks wait for, and what shows it."""
    hang = verdict.hang
    whom = f" for {listed(hang.ranks)}" if hang.ranks else ""
    source = hang.evidence.get("source", "black boxes")
    calm = ": ranks wait for each other, and all of them advance" if hang.state is State.SLOW else ""
    return f"{hang.state.value}{whom}{calm} (by the {source})"


def waiting_evidence(verdict: RunVerdict) -> Iterator[str]:
    """Yield what the ranks that are waited for do, and the collectives that wait."""
    if verdict.hang.state is State.SLOW:
        return  # a moment of a healthy run: some rank always waits
    reasons = verdict.hang.evidence.get("reasons")
    for rank, reason in list(reasons.items())[:_RANKS_SHOWN] if isinstance(reasons, Mapping) else ():
        yield f"  rank {rank} {reason}"
    gpus = verdict.hang.evidence.get("gpus")
    for state, ranks in gpus.items() if isinstance(gpus, Mapping) else ():
        yield f"  GPU {state}: {listed(tuple(ranks))}"
    for each in verdict.hang.groups[:_GROUPS_SHOWN]:
        waits = f", it waits for {listed(each.waited_for)}" if each.waited_for else ""
        arrived = f"{len(each.arrived)} of {each.members} ranks in it"
        yield f"  {each.operation} number {each.sequence} of {each.group}: {arrived}{waits}"
    if len(verdict.hang.groups) > _GROUPS_SHOWN:
        yield f"  and {len(verdict.hang.groups) - _GROUPS_SHOWN} more; --json shows them"


def _ranks(verdict: RunVerdict) -> Iterator[str]:
    blamed = set(verdict.ranks)
    ordered = sorted(verdict.ranks_seen, key=lambda each: (each["rank"] not in blamed, each["rank"]))
    for each in ordered[:_RANKS_SHOWN]:
        mark = "!" if each["rank"] in blamed else " "
        phase = f", in {each['phase']}" if "phase" in each else ""
        idle = f", no progress for {each['idle_seconds']:.1f} s" if "idle_seconds" in each else ""
        failure = f" by {each['failure']}" if "failure" in each else ""
        failure += f": {each['failure_message']}" if "failure_message" in each else ""
        who = f"{mark} {each['rank']} on {each['host']}"
        yield f"{who}: {each['state']}{failure}, step {each['step']}{phase}{idle}{_process(each)}"
    if len(ordered) > _RANKS_SHOWN:
        yield f"  and {len(ordered) - _RANKS_SHOWN} more; --json shows them"


def _process(rank: Mapping[str, object]) -> str:
    """Return what is odd about its process."""
    facts = rank.get("process")
    if not isinstance(facts, Mapping):
        return ""
    found = ""
    if facts.get("state") in {*STOPPED, ENDED, BLOCKED}:
        where = f" in {facts['wait_channel']}" if "wait_channel" in facts else ""
        found = f", process in state {facts['state']}{where}"
    share = facts.get("cpu_wait_share")
    if isinstance(share, float) and share >= CONTENDED_SHARE:
        found += f", waits {share:.0%} of its time for a CPU"
    return found


def note_parts(verdict: RunVerdict) -> list[str]:
    """Return what the evidence lacks."""
    notes = verdict.hang.evidence.get("notes")
    parts = [str(each) for each in notes] if isinstance(notes, list) else []
    skipped = verdict.sources["boxes_skipped"]
    if isinstance(skipped, Mapping) and skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        parts.append(f"black boxes skipped: {reasons}; first: {verdict.sources['first_skipped']}")
    silent = verdict.hang.evidence.get("flight_recorders_silent")
    if isinstance(silent, Mapping):
        rank, reason = next(iter(silent.items()))
        parts.append(f"{counted(len(silent), 'flight recorder')} gave nothing; rank {rank}: {reason}")
    if verdict.sources["records_missed"]:
        parts.append(f"{verdict.sources['records_missed']:,} records were overwritten or torn")
    if any(each["state"] == GONE for each in verdict.ranks_seen) or verdict.sources["copies"]:
        parts.append("copies, or no process is left: ranks are judged by the final state in their boxes")
    return parts


_EVENTS_SHOWN = 5
_PHASES_SHOWN = 12
_INDENT = "  "


def time_lines(verdict: RunVerdict) -> Iterator[str]:
    """Yield the phase table, and the events that the trends leave out."""
    yield from _phases(verdict.phases)
    if verdict.straggler is not None:
        yield from event_lines(verdict.straggler)


def _phases(table: Mapping[str, Any]) -> Iterator[str]:
    if not table:
        return
    alone = table["ranks"] == 1
    of = "" if alone else " in the median rank"
    yield f"phases:      {_milliseconds(table['step_seconds'])} ms a step{of}, over {table['steps']} steps"
    rows: Sequence[Mapping[str, Any]] = table["of_step"]
    shown = rows if len(rows) <= _PHASES_SHOWN else rows[: _PHASES_SHOWN - 1]
    width = max(len(str(each["phase"])) for each in (*shown, *table["apart"]))
    for each in shown:
        line = f"{each['phase']:<{width}} {_milliseconds(each['seconds']):>9} ms {each['share']:>6.1%}"
        yield f"{_INDENT}{line}{'' if alone else _worst(each)}"
    if len(rows) > len(shown):
        yield f"{_INDENT}and {len(rows) - len(shown)} more; --json shows them"
    for each in table["apart"]:
        times = counted(each["count"], "time")
        line = f"{each['phase']:<{width}} {_milliseconds(each['seconds']):>9} ms, {times}"
        longest = f", the longest {_milliseconds(each['worst_seconds'])} ms"
        yield f"{_INDENT}{line}{longest if alone else _worst(each)}"


def _worst(each: Mapping[str, Any]) -> str:
    return f", the worst {_milliseconds(each['worst_seconds'])} ms on rank {each['worst_rank']}"


def _milliseconds(seconds: float) -> str:
    milliseconds = 1e3 * seconds
    return f"{milliseconds:,.1f}" if milliseconds < 1e4 else f"{milliseconds:,.0f}"


def event_lines(found: Verdict) -> Iterator[str]:
    """Yield the single steps that lost time; nothing where there are none."""
    events = found.events
    if not events:
        return
    steps = counted(len(events), "single step")
    yield f"lost time:   {found.event_seconds:,.1f} s in {steps}, which the slowdown leaves out"
    for each in events[:_EVENTS_SHOWN]:
        lost = f"{each['lost_seconds']:,.1f} s in {each['operation']}"
        yield f"{_INDENT}step {each['step']}: {lost}{_late(each)}"
    if len(events) > _EVENTS_SHOWN:
        yield f"{_INDENT}and {len(events) - _EVENTS_SHOWN} more; --json shows them"


def _late(event: Mapping[str, object]) -> str:
    ranks = event["ranks"]
    if isinstance(ranks, list) and ranks:
        return f" on {listed(tuple(ranks))}"
    return ", and no rank seen here came late"
