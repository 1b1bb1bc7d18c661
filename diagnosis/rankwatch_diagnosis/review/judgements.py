"""What was judged of a run by its black boxes, each with its evidence."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch.conventions.states import Cause
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.review.loss_curve import anomaly_words
from rankwatch_diagnosis.review.model import Judgement
from rankwatch_diagnosis.run.loss_by_rank import loss_parts
from rankwatch_diagnosis.run.processes import lacks_cpus
from rankwatch_diagnosis.run.replica_words import replica_parts
from rankwatch_diagnosis.run.report import (
    loss_words,
    other_causes,
    slowdown_words,
    waiting_evidence,
    waiting_words,
)
from rankwatch_diagnosis.run.time_report import event_lines
from rankwatch_diagnosis.run.verdict import RunState, RunVerdict, worst_anomaly

_MOST_ANOMALIES = 12


def judgements(verdict: RunVerdict) -> Iterator[Judgement]:
    """Stall, slowdown, loss, replicas, and the lack of CPUs where it is seen."""
    stalled = Severity.CRITICAL if verdict.state is RunState.STALLED else Severity.INFO
    evidence = tuple(each.strip() for each in waiting_evidence(verdict))
    yield Judgement("Waiting", stalled, waiting_words(verdict), evidence)
    yield _slowdown(verdict)
    found = () if verdict.loss is None else verdict.loss[1].anomalies
    yield Judgement(
        "Loss",
        worst_anomaly(verdict) or Severity.INFO,
        loss_words(verdict),
        (*loss_parts(verdict.losses), *(anomaly_words(each) for each in found[-_MOST_ANOMALIES:])),
    )
    head, *others = replica_parts(verdict.replicas)
    differ = Severity.CRITICAL if verdict.replicas.differing else Severity.INFO
    yield Judgement("Replicas", differ, head, tuple(others))
    if verdict.contention:
        yield Judgement("CPUs", Severity.WARNING, lacks_cpus(verdict.contention))


def _slowdown(verdict: RunVerdict) -> Judgement:
    found = verdict.straggler
    calm = found is None or found.cause in (Cause.NONE, Cause.INCONCLUSIVE)
    evidence = (*other_causes(found), *(() if found is None else event_lines(found)))
    return Judgement(
        "Slowdown",
        Severity.INFO if calm else Severity.WARNING,
        slowdown_words(found),
        tuple(each.strip() for each in evidence),
    )
