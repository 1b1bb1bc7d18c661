"""`python -m tests.bench.loss_detection`: false alarms on healthy losses, delays on diverging ones."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the shared test code, as under pytest

from rankwatch_diagnosis.loss.anomaly import Anomaly, Severity
from rankwatch_diagnosis.loss.detection import detect
from rankwatch_diagnosis.loss.formats import ReadCounts, StepValues
from support.diagnosis.loss_curves import DIVERGING, HEALTHY, STEPS, Curve, curves


class Counts(NamedTuple):
    """Results over all curves of one kind."""

    kind: str
    curves: int
    false: int
    """Curves with a warning or critical anomaly before the onset, or anywhere in a healthy curve."""
    spikes: int
    """Anomalies of severity info, in all curves."""
    first: tuple[int, ...]
    """Steps from each onset that was found to the step of its anomaly, sorted."""
    confirmed: tuple[int, ...]
    """The same to the step at which the anomaly was confirmed, sorted."""


def count_anomalies(kind: str, count: int, seed: int) -> Counts:
    """Diagnose `count` curves of a kind."""
    false = spikes = 0
    first, confirmed = [], []
    for curve in curves(kind, count, seed):
        anomalies = anomalies_of(curve)
        grave = [anomaly for anomaly in anomalies if anomaly.severity != Severity.INFO]
        onset = STEPS if curve.onset is None else curve.onset
        false += any(curve.onset is None or anomaly.step < onset for anomaly in grave)
        spikes += len(anomalies) - len(grave)
        found = next((anomaly for anomaly in grave if anomaly.step >= onset), None)
        if found is not None and curve.onset is not None:
            first.append(found.step - onset)
            confirmed.append((found.step if found.confirmed_step is None else found.confirmed_step) - onset)
    return Counts(kind, count, false, spikes, tuple(sorted(first)), tuple(sorted(confirmed)))


def anomalies_of(curve: Curve) -> tuple[Anomaly, ...]:
    """The anomalies of one curve, by the detector of the agent and of the command."""
    rows = (StepValues(step, loss) for step, loss in zip(curve.steps, curve.losses, strict=True))
    return detect(rows, ReadCounts()).anomalies


def table(counts: Sequence[Counts]) -> str:
    """A Markdown table; delays in steps."""
    lines = [
        "| curves | kind | false alarms | found | delay: median, 95 %, most | until confirmed: the same "
        "| spikes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in counts:
        found = f"{len(each.first)} of {each.curves}" if each.kind in DIVERGING else ""
        delays = f"{_quantiles(each.first)} | {_quantiles(each.confirmed)}"
        lines.append(f"| {each.curves} | {each.kind} | {each.false} | {found} | {delays} | {each.spikes} |")
    return "\n".join(lines)


def _quantiles(delays: Sequence[int]) -> str:
    if not delays:
        return ""
    last = len(delays) - 1
    return ", ".join(str(delays[round(part * last)]) for part in (0.5, 0.95, 1.0))


def main(arguments: Sequence[str]) -> int:
    """Print the table and its targets. Exit status 1 if one is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loss_detection", description=__doc__)
    parser.add_argument("--curves", type=int, default=50, metavar="N", help="of each kind (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="base of all seeds (default 0)")
    given = parser.parse_args(arguments)
    counts = [count_anomalies(kind, given.curves, given.seed) for kind in (*HEALTHY, *DIVERGING)]
    print(table(counts))
    healthy = sum(each.curves for each in counts if each.kind in HEALTHY)
    false = sum(each.false for each in counts)
    share = [len(each.first) / each.curves for each in counts if each.kind in DIVERGING]
    print(
        f"\n{false} false alarms (must be 0), in {healthy} healthy curves of {STEPS:,} steps and before "
        "onsets"
    )
    print(f"{100 * min(share):.1f} % found of the hardest kind (must be 95 %)")
    return 0 if not false and min(share) >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
