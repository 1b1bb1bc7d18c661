"""Each NVML series against what nvidia-smi said just before and just after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from rankwatch_agent.sources.gpu.protocol import Gpu, Reading
from support.gpu.nvidia_smi import Smi
from support.gpu.reading import Values, values_of
from support.gpu.smi_checks import LABELS, MEMORY_SLACK, NUMBERS, STATES, UNCHECKED, Check, Key, Words
from support.gpu.smi_output import NOT_AVAILABLE, Answers, is_absent, quantity


class Verdict(NamedTuple):
    """What came of one GPU, or of several."""

    problems: dict[Key, str]
    held: set[Key]
    """Compared and alike, absence among them."""
    untold: dict[Key, str]
    """Series for which this nvidia-smi has no answer: names of the sources that were looked for."""
    zeros: set[Key]
    """Alike, but at 0: this proves nothing of the unit."""


def unheld(exported: Iterable[Key], verdict: Verdict) -> set[Key]:
    """Series that nothing was said of."""
    known = verdict.held | set(verdict.untold) | set(verdict.problems)
    return {each for each in exported if each not in known and not _unchecked(each)}


def hold(smi: Smi, read: Callable[[], Reading], rounds: int = 5) -> Verdict:
    """Compare until all is alike; what differs in every round is a problem.

    One round is not enough: a clock or a load may jump between two answers and back.
    """
    all_problems: list[dict[Key, str]] = []
    held: set[Key] = set()
    for _ in range(rounds):
        before, reading, after = smi.look(), read(), smi.look()
        verdict = _compare_all(before, reading, after)
        held |= verdict.held
        all_problems.append(verdict.problems)
        if not verdict.problems:
            break
    lasting = set.intersection(*map(set, all_problems))
    problems = {key: all_problems[-1][key] for key in lasting}
    return verdict._replace(problems=problems, held=held - lasting)


def _compare_all(before: dict[str, Answers], reading: Reading, after: dict[str, Answers]) -> Verdict:
    total = Verdict({}, set(), {}, set())
    ours, theirs = {gpu.uuid for gpu in reading.gpus if gpu.up}, before.keys() & after.keys()
    if ours != theirs:
        total.problems["up",] = f"ours {sorted(ours)}, nvidia-smi's {sorted(theirs)}"
    for gpu in reading.gpus:
        if gpu.uuid in theirs:
            one = compare(before[gpu.uuid], gpu, after[gpu.uuid])
            total.problems.update({key: f"{gpu.uuid}: {text}" for key, text in one.problems.items()})
            total.held.update(one.held)
            total.untold.update(one.untold)
            total.zeros.update(one.zeros)
    return total._replace(held=total.held - total.problems.keys(), untold=_without(total))


def compare(before: Answers, gpu: Gpu, after: Answers) -> Verdict:
    """One GPU, between two looks of nvidia-smi."""
    verdict, values = Verdict({}, set(), {}, set()), values_of(gpu)
    major = before.get("/driver_version", "0").partition(".")[0]
    for check in (*NUMBERS, *_process_checks(values, before, after)):
        _compare_number(check, values, before, after, verdict, int(major) if major.isdecimal() else 0)
    for state in STATES:
        _compare_state(state, values, before, after, verdict)
    _compare_identity(values, before, verdict)
    _compare_mig(values, before, after, verdict)
    return verdict


def _without(total: Verdict) -> dict[Key, str]:
    return {key: text for key, text in total.untold.items() if key not in total.held}


def _unchecked(key: Key) -> bool:
    return any(key[: len(start)] == start for start in UNCHECKED)


def _told(sources: Iterable[str], *looks: Answers) -> list[str]:
    return [look[source] for look in looks for source in sources if source in look]


def _compare_number(
    check: Check, values: Values, before: Answers, after: Answers, verdict: Verdict, major: int
) -> None:
    told, ours = _told(check.sources, before, after), values.get(check.key)
    numbers = [each for each in map(quantity, told) if each is not None]
    said = f"ours {'nothing' if ours is None else f'{ours:.10g}'}, nvidia-smi {told}"
    if not numbers:
        absent = any(map(is_absent, told))
        if absent and ours is not None:
            verdict.problems[check.key] = f"a series of what is not there: {said}"
        elif absent:
            verdict.held.add(check.key)
        elif ours is not None:
            verdict.untold[check.key] = f"{', '.join(check.sources)}: {told}"
    elif ours is None:
        if major >= check.since:
            verdict.problems[check.key] = f"no series: {said}"
    else:
        low = min(each.value - each.step for each in numbers) - check.slack
        high = max(each.value + each.step for each in numbers) + check.slack
        if low <= ours <= high:
            verdict.held.add(check.key)
            if ours == 0:
                verdict.zeros.add(check.key)
        else:
            verdict.problems[check.key] = f"not within {low:.10g} .. {high:.10g}: {said}"


def _compare_state(state: Words, values: Values, before: Answers, after: Answers, verdict: Verdict) -> None:
    told = _told(state.sources, before, after)
    ours = [key for key in values if key[0] == state.metric]
    known = {(state.metric, state.states[each]) for each in told if each in state.states}
    if any(each != state.fine and not is_absent(each) for each in _told(state.verdicts, before, after)):
        known = {(state.metric, "failed")}
    if any(values[key] != 1 for key in ours) or len(ours) > 1:
        verdict.problems[state.metric,] = f"not one state: {ours}"
    elif known and (not ours or ours[0] not in known):
        verdict.problems[state.metric,] = f"ours {ours}, nvidia-smi {told}"
    elif ours and not known and any(map(is_absent, told)):
        verdict.problems[state.metric,] = f"a series of what is not there: ours {ours}, nvidia-smi {told}"
    elif ours and not known:
        verdict.untold[ours[0]] = f"{', '.join(state.sources)}: {told}"
    else:
        verdict.held.update(ours)


def _compare_identity(values: Values, before: Answers, verdict: Verdict) -> None:
    wanted = []
    for sources, normalise in LABELS:
        told = _told(sources, before)
        wanted.append({normalise(each) for each in told})
    ours = next((key for key in values if key[0] == "info"), ("info",))
    same = len(ours) == len(wanted) + 1 and all(
        mine in theirs or not theirs for mine, theirs in zip(ours[1:], wanted, strict=True)
    )
    if not same or values.get(("up",)) != 1:
        verdict.problems["info",] = f"ours {ours}, up {values.get(('up',))}, nvidia-smi {wanted}"
    else:
        verdict.held.update({ours, ("up",)})


def _compare_mig(values: Values, before: Answers, after: Answers, verdict: Verdict) -> None:
    enabled = "Enabled" in _told(("mig.mode.current", "/mig_mode/current_mig"), before, after)
    ours = [key for key in values if key[0] == "mig_info"]
    expected = before.get("mig_devices", "0") if enabled else "0"
    if str(len(ours)) != expected or (not enabled and any(key[0].startswith("mig_") for key in values)):
        verdict.problems["mig_info",] = f"ours {ours}, nvidia-smi: {expected}"
    verdict.held.update(ours)


def _process_checks(values: Values, before: Answers, after: Answers) -> Iterable[Check]:
    pids = {each.removeprefix("process/") for look in (before, after) for each in look if "process/" in each}
    pids |= {key[1] for key in values if key[0] == "process_memory_bytes"}
    for pid in sorted(pids):
        source = f"process/{pid}"
        for look in (before, after):
            if look.get("processes", NOT_AVAILABLE) != NOT_AVAILABLE:
                look.setdefault(source, NOT_AVAILABLE)  # it lists processes, and this is none of them
        yield Check(("process_memory_bytes", pid), (source,), slack=MEMORY_SLACK)
