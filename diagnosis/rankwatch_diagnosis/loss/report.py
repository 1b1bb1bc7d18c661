"""Findings for a person, and for a program."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_agent.training.loss import DIVERGENCE_SIGMAS, WARM_UP_STEPS
from rankwatch_diagnosis.loss.alarm import Alarm, Kind, Severity, finite
from rankwatch_diagnosis.loss.detection import MAX_LISTED, Findings

SHOWN_ALARMS = 20
"""Alarms that a person is shown, the gravest first; `--json` lists all."""
_ORDER = tuple(reversed(Severity))
_COLOURS = {Severity.CRITICAL: "\x1b[31m", Severity.WARNING: "\x1b[33m", Severity.INFO: ""}
_PLAIN = "\x1b[0m"
_TOLD = {
    Kind.NON_FINITE: "the loss is {value:g}",
    Kind.GRADIENT_NON_FINITE: "the gradient norm is {value:g}",
    Kind.UPDATE_NON_FINITE: "the update norm is {value:g}",
    Kind.SPIKE: "the loss spikes: {value:.4g} where {expected:.4g} was expected",
    Kind.DIVERGENCE: "the loss diverges: {value:.4g} where {expected:.4g} was expected, up to {highest:.4g}",
    Kind.GRADIENT_NORM_JUMP: "the gradient norm jumps: {value:.4g} where {expected:.4g} was expected",
    Kind.UPDATE_NORM_JUMP: "the update norm jumps: {value:.4g} where {expected:.4g} was expected",
    Kind.LOSS_SCALE_COLLAPSE: "the loss scale collapses: from {expected:g} to {highest:g} in {values} falls",
}


def as_json(findings: Findings) -> dict[str, object]:
    """The object of `--json`; the entries of `evidence.episodes` belong to those of `alarms`."""
    intake = findings.intake
    return {
        "alarms": [alarm.as_json() for alarm in findings.alarms],
        "evidence": {
            "steps": intake.rows,
            "first_step": findings.first_step,
            "last_step": findings.last_step,
            "skipped_rows": intake.skipped,
            "repeated_rows": intake.repeated,
            "restarts": intake.restarts,
            "truncated": intake.truncated,
            "alarms_not_listed": findings.unlisted,
            "threshold_sigmas": DIVERGENCE_SIGMAS,
            "persistence_steps": findings.persistence,
            "episodes": [_episode(findings, alarm) for alarm in findings.alarms],
        },
    }


def _episode(findings: Findings, alarm: Alarm) -> dict[str, object]:
    return {
        "last_step": alarm.last_step,
        "steps": alarm.values,
        "extreme": finite(alarm.highest),
        "confirmed_step": alarm.confirmed_step,
        "recovered": alarm.recovered,
        "preceded_by": [
            {"step": other.step, "kind": str(other.kind)} for other in findings.precursors(alarm)
        ],
    }


def as_text(findings: Findings, *, colour: bool) -> str:
    """The verdict, the gravest alarms, the evidence."""
    return "\n".join((_verdict(findings, colour=colour), *_listed(findings), *_evidence(findings)))


def _verdict(findings: Findings, *, colour: bool) -> str:
    span = f"{findings.intake.rows:,} steps ({findings.first_step} to {findings.last_step})"
    counts = {each: sum(alarm.severity == each for alarm in findings.alarms) for each in _ORDER}
    said = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count)
    if not said:
        return f"no alarm in {span}"
    worst = next(severity for severity in _ORDER if counts[severity])
    text = f"{'no divergence; ' if worst is Severity.INFO else ''}{said} in {span}"
    return f"{_COLOURS[worst]}{text}{_PLAIN}" if colour and _COLOURS[worst] else text


def _listed(findings: Findings) -> Iterator[str]:
    gravest = sorted(findings.alarms, key=lambda alarm: _ORDER.index(alarm.severity))[:SHOWN_ALARMS]
    shown = set(map(id, gravest))
    for alarm in findings.alarms:
        if id(alarm) in shown:
            yield f"  {alarm.severity:<8}  step {alarm.step:<8} {_told(alarm)}"
            for other in findings.precursors(alarm)[:3]:
                yield f"{'':24}{alarm.step - other.step} steps before: {_told(other)}"
    if hidden := len(findings.alarms) - len(gravest):
        yield f"  and {hidden:,} more, see --json"


def _told(alarm: Alarm) -> str:
    text = _TOLD[alarm.kind].format(
        value=alarm.value, expected=alarm.expected, highest=alarm.highest, values=alarm.values
    )
    if not alarm.recovered and alarm.kind is Kind.SPIKE:
        return f"{text}; nothing is reported after it"
    if not alarm.recovered:
        return f"{text}; it does not return"
    return f"{text}; {alarm.values} steps, to step {alarm.last_step}" if alarm.values > 1 else text


def _evidence(findings: Findings) -> Iterator[str]:
    intake = findings.intake
    yield (
        f"divergence: more than {DIVERGENCE_SIGMAS:g} standard deviations above its trend for "
        f"{findings.persistence} steps in a row"
    )
    if intake.losses < WARM_UP_STEPS:
        yield f"too few steps for a trend, which takes {WARM_UP_STEPS}: only NaN and infinity were looked for"
    if intake.skipped:
        yield f"{intake.skipped:,} rows skipped: no step, no number, or too long"
    if intake.repeated:
        yield f"{intake.repeated:,} rows left out: they repeat the step before them"
    if intake.restarts:
        yield f"{intake.restarts:,} restarts: the step went back, and the trend began anew"
    if intake.truncated:
        yield "the compressed file is damaged or ends in the middle: judged up to there"
    if findings.unlisted:
        yield f"{findings.unlisted:,} alarms beyond {MAX_LISTED:,} of their kind were counted only"
