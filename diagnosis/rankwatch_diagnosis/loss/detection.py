"""Runs all detectors over the steps of one file or run, and says what they found."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.learning.loss import CONFIRM_STEPS, DIVERGENCE_SIGMAS, WARM_UP_STEPS
from rankwatch_diagnosis.json_value import json_value
from rankwatch_diagnosis.loss.anomaly import Anomaly, Kind, Severity
from rankwatch_diagnosis.loss.detectors import (
    DivergenceDetector,
    LossScaleDetector,
    NonFiniteDetector,
    NormJumpDetector,
    PlateauDetector,
)
from rankwatch_diagnosis.loss.reading import (
    MATCH_SECONDS,
    ReadCounts,
    StepValues,
    bounded,
    extract_by,
    read_rows,
)

MAX_LISTED = 1000
"""Anomalies of a kind that are listed; the rest is counted."""
RESTART_STEPS = 20
"""A step that goes back by so many is a run that goes on from a checkpoint. Ranks that write into one log
lie a few steps apart."""
PRECURSOR_STEPS = 200
"""Norms and loss scales that moved at most so many steps before a divergence are named with it."""
PRECURSORS = (
    Kind.GRADIENT_NORM_JUMP,
    Kind.UPDATE_NORM_JUMP,
    Kind.GRADIENT_NON_FINITE,
    Kind.UPDATE_NON_FINITE,
    Kind.LOSS_SCALE_COLLAPSE,
)


@dataclass(frozen=True, kw_only=True)
class LossVerdict:
    """What was found in the losses of a file or a run."""

    anomalies: tuple[Anomaly, ...]
    """By step."""
    unlisted: int
    """Anomalies beyond MAX_LISTED of their kind."""
    counts: ReadCounts
    first_step: int | None
    last_step: int | None
    persistence: int
    plateau_steps: int = 0
    """Over which the loss must improve; 0: nobody asked."""
    plateaus: tuple[tuple[int, int], ...] = ()
    """First and last step from which on, looking back, the loss had not improved."""

    def precursors(self, anomaly: Anomaly) -> tuple[Anomaly, ...]:
        """Return what moved shortly before the loss; empty except for a divergence or NaN of the loss."""
        if anomaly.kind not in (Kind.DIVERGENCE, Kind.NON_FINITE):
            return ()
        return tuple(
            other
            for other in self.anomalies
            if other.kind in PRECURSORS and 0 <= anomaly.step - other.step <= PRECURSOR_STEPS
        )


@dataclass
class _Anomalies:
    """Bounded by kind, so that a noisy file of any size cannot fill the memory."""

    listed: dict[Kind, list[Anomaly]] = field(default_factory=dict)
    unlisted: int = 0

    def add(self, anomaly: Anomaly) -> None:
        of_kind = self.listed.setdefault(anomaly.kind, [])
        if len(of_kind) < MAX_LISTED:
            of_kind.append(anomaly)
        else:
            self.unlisted += 1

    def clear(self) -> None:
        self.listed.clear()
        self.unlisted = 0

    def by_step(self) -> Iterator[Anomaly]:
        yield from sorted(
            (each for anomalies in self.listed.values() for each in anomalies),
            key=lambda anomaly: (anomaly.step, anomaly.kind),
        )


def diagnose(
    path: Path,
    *,
    pattern: str | None = None,
    columns: Mapping[str, str] | None = None,
    persistence: int = CONFIRM_STEPS,
    new_levels: Collection[int] = (),
    plateau_steps: int = 0,
    match_seconds: float = MATCH_SECONDS,
) -> LossVerdict:
    """Judge the losses of a file.

    pattern: regular expression with the groups `step` and `loss`, for the lines of a log.
    columns: name of ours -> name in a table, for those that differ.
    persistence: values for which a loss that stands out must not fall back to be a divergence.
    new_levels: steps from which the loss may stand elsewhere, as with other data.
    plateau_steps: over which the loss must improve; 0 looks for no plateau.
    match_seconds: time of the processor that `pattern` may take on one line. In the main thread only.
    Raises UserError where the file cannot be read or holds no loss, or the pattern takes too long.
    """
    counts = ReadCounts()
    # A mistake in the pattern is reported before a large file is opened.
    limited = bounded(extract_by(pattern), seconds=match_seconds) if pattern is not None else nullcontext()
    with limited as extract:
        rows = read_rows(path, counts, extract, columns or {})
        verdict = detect(
            rows, counts, persistence=persistence, new_levels=new_levels, plateau_steps=plateau_steps
        )
    if not counts.losses:
        raise UserError(_no_loss(path, counts, pattern))
    return verdict


def _no_loss(path: Path, counts: ReadCounts, pattern: str | None) -> str:
    text = f"{path} holds no step with a loss"
    if pattern is not None:
        text += " that --pattern finds"
    if counts.skipped:
        text += f"; {counts.skipped:,} rows were skipped"
    if counts.truncated:
        text += "; the compressed file is damaged or ends in the middle"
    if pattern is None and not counts.skipped:
        text += "; expected CSV with the columns step and loss, or a log, if need be with --pattern"
    return text


def detect(
    rows: Iterable[StepValues],
    counts: ReadCounts,
    *,
    persistence: int = CONFIRM_STEPS,
    new_levels: Collection[int] = (),
    earlier: Iterable[Iterable[StepValues]] = (),
    plateau_steps: int = 0,
) -> LossVerdict:
    """Judge the rows in their order, in constant memory. A step that goes back far is a restart.

    counts: of what was read; what is judged and what is left out is added here.
    new_levels: steps from which the loss may stand elsewhere, as with other data.
    persistence: values for which a loss that stands out must not fall back to be a divergence.
    plateau_steps: over which the loss must improve; 0 looks for no plateau.
    earlier: attempts before. They tell what the loss was at each step; their anomalies are not reported.
    """
    anomalies = _Anomalies()
    detectors = _Detectors(anomalies, persistence)
    plateau = PlateauDetector(plateau_steps) if plateau_steps else None
    for attempt in earlier:
        for row in _distinct(attempt, ReadCounts()):
            detectors.take(row)
        detectors.end_process()
    anomalies.clear()
    first: int | None = None
    last: int | None = None
    for row in _distinct(rows, counts):
        if last is not None and row.step <= last - RESTART_STEPS:
            counts.restarts += 1
            detectors.end_process()
        elif row.step in new_levels and row.step != last:
            detectors.loss.relearn()
            if plateau is not None:
                plateau.clear()
        first = row.step if first is None else min(first, row.step)
        last = row.step
        counts.rows += 1
        counts.losses += row.loss is not None
        detectors.take(row)
        if plateau is not None and row.loss is not None:
            plateau.take(row.step, min(row.loss, detectors.loss.no_spike))
    detectors.end_process()
    return LossVerdict(
        anomalies=tuple(anomalies.by_step()),
        unlisted=anomalies.unlisted,
        counts=counts,
        first_step=first,
        last_step=last,
        persistence=persistence,
        plateau_steps=plateau_steps,
        plateaus=tuple(plateau.found) if plateau is not None else (),
    )


def _distinct(rows: Iterable[StepValues], counts: ReadCounts) -> Iterator[StepValues]:
    """Yield, of the rows of one step that follow each other, the first with a loss and the first without."""
    step: int | None = None
    seen: set[bool] = set()
    for row in rows:
        has_loss = row.loss is not None
        if row.step != step:
            step, seen = row.step, set()
        elif has_loss in seen:
            counts.repeated += 1
            continue
        seen.add(has_loss)
        yield row


class _Detectors:
    def __init__(self, anomalies: _Anomalies, persistence: int) -> None:
        add, info, warning = anomalies.add, Severity.INFO, Severity.WARNING
        finite = {
            "loss": NonFiniteDetector(add, Kind.NON_FINITE, recovered_severity=warning),
            "grad_norm": NonFiniteDetector(add, Kind.GRADIENT_NON_FINITE, recovered_severity=info),
            "update_norm": NonFiniteDetector(add, Kind.UPDATE_NON_FINITE, recovered_severity=info),
        }
        self.loss = DivergenceDetector(add, persistence=persistence)
        detectors: dict[str, DivergenceDetector | NormJumpDetector | LossScaleDetector] = {
            "loss": self.loss,
            "grad_norm": NormJumpDetector(add, Kind.GRADIENT_NORM_JUMP),
            "update_norm": NormJumpDetector(add, Kind.UPDATE_NORM_JUMP),
            "loss_scale": LossScaleDetector(add),
        }
        self._takers = [
            (StepValues._fields.index(name), detector)
            for name, detector in (*finite.items(), *detectors.items())
        ]

    def take(self, row: StepValues) -> None:
        for place, detector in self._takers:
            value = row[place]
            if value is not None:
                detector.take(row.step, value)

    def end_process(self) -> None:
        for _, detector in self._takers:
            detector.end_process()


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
    """Return the object of `--json`; the entries of `evidence.details` belong to those of `anomalies`."""
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
            "details": [
                {
                    "last_step": anomaly.last_step,
                    "steps": anomaly.values,
                    "extreme": json_value(anomaly.highest),
                    "confirmed_step": anomaly.confirmed_step,
                    "recovered": anomaly.recovered,
                    "preceded_by": [
                        {"step": other.step, "kind": str(other.kind)} for other in verdict.precursors(anomaly)
                    ],
                }
                for anomaly in verdict.anomalies
            ],
        },
    }


def colour_of(verdict: LossVerdict) -> str:
    """Return the colour of the headline: that of the most severe anomaly."""
    found = {each.severity for each in verdict.anomalies}
    return next((_COLOURS[each] for each in _ORDER if each in found), "")


def lines(verdict: LossVerdict) -> Iterator[str]:
    """Yield the verdict, the most severe anomalies, the evidence."""
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


def _evidence(verdict: LossVerdict) -> Iterator[str]:
    counts = verdict.counts
    steps = f"{verdict.plateau_steps:,} steps"
    for first, last in verdict.plateaus:
        yield f"plateau: from step {first} to {last} the loss had not improved by 0.5 % within {steps}"
    if verdict.plateau_steps and not verdict.plateaus:
        yield f"no plateau: the loss improved, or its noise may hide that, within all {steps}"
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
