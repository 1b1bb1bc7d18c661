"""The verdict on a loss, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_agent.training.loss import DIVERGENCE_SIGMAS, WARM_UP_STEPS
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.loss.anomaly import Anomaly, Kind, Severity
from rankwatch_diagnosis.loss.detection import MAX_LISTED, LossVerdict

SHOWN_ANOMALIES = 20
"""Anomalies that a person is shown, the most severe first; `--json` lists all."""
_ORDER = tuple(reversed(Severity))
_COLOURS = {Severity.CRITICAL: "red", Severity.WARNING: "yellow", Severity.INFO: ""}
_SENTENCES = {
    Kind.NON_FINITE: "the loss is {value:g}",
    Kind.GRADIENT_NON_FINITE: "the gradient norm is {value:g}",
    Kind.UPDATE_NON_FINITE: "the update norm is {value:g}",
    Kind.SPIKE: "the loss spikes: {value:.4g} where {expected:.4g} was expected",
    Kind.DIVERGENCE: "the loss diverges: {value:.4g} where {expected:.4g} was expected, up to {highest:.4g}",
    Kind.GRADIENT_NORM_JUMP: "the gradient norm jumps: {value:.4g} where {expected:.4g} was expected",
    Kind.UPDATE_NORM_JUMP: "the update norm jumps: {value:.4g} where {expected:.4g} was expected",
    Kind.LOSS_SCALE_COLLAPSE: "the loss scale collapses: from {expected:g} to {highest:g} in {values} falls",
}


def as_json(verdict: LossVerdict) -> dict[str, object]:
    """The object of `--json`; the entries of `evidence.details` belong to those of `anomalies`."""
    counts = verdict.counts
    return {
        "anomalies": [anomaly.as_json() for anomaly in verdict.anomalies],
        "evidence": {
            "steps": counts.rows,
            "first_step": verdict.first_step,
            "last_step": verdict.last_step,
            "skipped_rows": counts.skipped,
            "repeated_rows": counts.repeated,
            "restarts": counts.restarts,
            "truncated": counts.truncated,
            "anomalies_not_listed": verdict.unlisted,
            "threshold_sigmas": DIVERGENCE_SIGMAS,
            "persistence_steps": verdict.persistence,
            "plateau_steps": verdict.plateau_steps,
            "plateaus": [{"step": first, "last_step": last} for first, last in verdict.plateaus],
            "details": [_details(verdict, anomaly) for anomaly in verdict.anomalies],
        },
    }


def _details(verdict: LossVerdict, anomaly: Anomaly) -> dict[str, object]:
    return {
        "last_step": anomaly.last_step,
        "steps": anomaly.values,
        "extreme": json_value(anomaly.highest),
        "confirmed_step": anomaly.confirmed_step,
        "recovered": anomaly.recovered,
        "preceded_by": [
            {"step": other.step, "kind": str(other.kind)} for other in verdict.precursors(anomaly)
        ],
    }


def colour_of(verdict: LossVerdict) -> str:
    """Of the headline: that of the most severe anomaly."""
    found = {each.severity for each in verdict.anomalies}
    return next((_COLOURS[each] for each in _ORDER if each in found), "")


def lines(verdict: LossVerdict) -> Iterator[str]:
    """The verdict, the most severe anomalies, the evidence."""
    yield _headline(verdict)
    yield from _listed(verdict)
    yield from _evidence(verdict)


def _headline(verdict: LossVerdict) -> str:
    span = f"{verdict.counts.rows:,} steps ({verdict.first_step} to {verdict.last_step})"
    counts = {each: sum(anomaly.severity == each for anomaly in verdict.anomalies) for each in _ORDER}
    listed = ", ".join(f"{count} {severity}" for severity, count in counts.items() if count)
    if not listed:
        return f"no anomaly in {span}"
    worst = next(severity for severity in _ORDER if counts[severity])
    return f"{'no divergence; ' if worst is Severity.INFO else ''}{listed} in {span}"


def _listed(verdict: LossVerdict) -> Iterator[str]:
    most_severe = sorted(verdict.anomalies, key=lambda anomaly: _ORDER.index(anomaly.severity))[
        :SHOWN_ANOMALIES
    ]
    shown = set(map(id, most_severe))
    for anomaly in verdict.anomalies:
        if id(anomaly) in shown:
            yield f"  {anomaly.severity:<8}  step {anomaly.step:<8} {_sentence(anomaly)}"
            for other in verdict.precursors(anomaly)[:3]:
                yield f"{'':24}{anomaly.step - other.step} steps before: {_sentence(other)}"
    if hidden := len(verdict.anomalies) - len(most_severe):
        yield f"  and {hidden:,} more, see --json"


def _sentence(anomaly: Anomaly) -> str:
    text = _SENTENCES[anomaly.kind].format(
        value=anomaly.value, expected=anomaly.expected, highest=anomaly.highest, values=anomaly.values
    )
    if not anomaly.recovered and anomaly.kind is Kind.SPIKE:
        return f"{text}; nothing is reported after it"
    if not anomaly.recovered:
        return f"{text}; it does not return"
    return f"{text}; {anomaly.values} steps, to step {anomaly.last_step}" if anomaly.values > 1 else text


def _plateaus(verdict: LossVerdict) -> Iterator[str]:
    steps = f"{verdict.plateau_steps:,} steps"
    for first, last in verdict.plateaus:
        yield f"plateau: from step {first} to {last} the loss had not improved by 0.5 % within {steps}"
    if verdict.plateau_steps and not verdict.plateaus:
        yield f"no plateau: the loss improved, or its noise may hide that, within all {steps}"


def _evidence(verdict: LossVerdict) -> Iterator[str]:
    counts = verdict.counts
    yield from _plateaus(verdict)
    yield (
        f"a divergence stands {DIVERGENCE_SIGMAS:g} standard deviations above the trend, at once or in sum, "
        f"and does not fall back for {verdict.persistence} steps"
    )
    if counts.losses < WARM_UP_STEPS:
        yield f"too few steps for a trend, which takes {WARM_UP_STEPS}: only NaN and infinity were looked for"
    if counts.skipped:
        yield f"{counts.skipped:,} rows skipped: no step, no number, or too long"
    if counts.repeated:
        yield f"{counts.repeated:,} rows left out: they repeat the step before them"
    if counts.restarts:
        yield (
            f"{counts.restarts:,} restarts: the step went back, and the trend began anew, no higher than it "
            "was there"
        )
    if counts.truncated:
        yield "the compressed file is damaged or ends in the middle: judged up to there"
    if verdict.unlisted:
        yield f"{verdict.unlisted:,} anomalies beyond {MAX_LISTED:,} of their kind were counted only"
