"""The verdicts of both forms of the straggler diagnosis on one job: the engine's, and that of the alerts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench.simulation.job import Job, SimulatedJob, simulate
from bench.simulation.program import JobShape
from rankwatch.conventions.states import Cause, SlowPhase
from rankwatch_alerts import RuleConfig
from rankwatch_alerts.rules import Alert
from rankwatch_diagnosis.straggler.engine import diagnose
from support.alerts.rule_test import Sample, ask, groups_of
from support.training.replayed_job import Scrapes, scrape_live

SCRAPE_SECONDS = 30.0
_CONFIG = RuleConfig(scrape_interval_seconds=SCRAPE_SECONDS)
"""The rules of everybody but for twice the interval, which many have, and which makes half the work."""
FIRING = 'ALERTS{alertstate="firing"}'
_NAMED = f'ALERTS{{alertstate="firing",alertname="{Alert.RUN_SLOW}",cause="{Cause.SLOW_RANK}"}}'
PHASES_OF_NAMED = (
    f"rank_phase:rankwatch_step_local_seconds:excess_share > {_CONFIG.phase_share:g}"
    f" and on (cluster, run, rank, node) {_NAMED}"
)
_WATCHED = "rank:rankwatch_step_local_seconds:residual"
_GROUPS = ("rankwatch-runs-severity", "rankwatch-runs-life", "rankwatch-slow")
"""Names of groups begin so."""
RULES = [each for each in groups_of(_CONFIG) if each["name"].startswith(_GROUPS)]
"""Rules about slowness. Those about standstill, loss and silence have tests of their own."""


class Outcome(NamedTuple):
    """What a form concludes about a run."""

    cause: Cause
    phase: SlowPhase | None = None
    ranks: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()


NOTHING = Outcome(Cause.NONE)


def lasting(job: Job, seconds: float) -> Job:
    """The same job at a pace at which its run takes so long: windows of rules are minutes."""
    factor = seconds / float(simulate(job).step_seconds.sum())
    paced = {name: value * factor for name, value in vars(job.workload).items() if name.endswith("_seconds")}
    return replace(job, workload=replace(job.workload, **paced))


def verdict_of_engine(run: SimulatedJob) -> Outcome:
    """The engine's conclusion from the table of operations."""
    verdict = diagnose(run.table)
    return Outcome(verdict.cause, verdict.phase, verdict.ranks, verdict.stages)


def verdict_of_alerts(run: SimulatedJob, shape: JobShape, directory: Path) -> Outcome:
    """Which alerts fire as the run ends, from what agents exported while it went on. Fails where alerts
    report several causes at once, or do not see each rank."""
    firing, phases = samples_of_alerts(run, shape, directory, (FIRING, PHASES_OF_NAMED))
    return outcome_of_alerts([each.labels for each in firing], [each.labels for each in phases])


def samples_of_alerts(
    run: SimulatedJob, shape: JobShape, directory: Path, expressions: Sequence[str]
) -> list[list[Sample]]:
    """The samples of each expression as the run ends. Fails where the rules do not see each rank."""
    names = frozenset(re.findall(r"\brankwatch_\w+", json.dumps(RULES)))
    interval = _CONFIG.scrape_interval_seconds
    scrapes = scrape_live(run, shape, directory / "boxes", names=names, interval_seconds=interval)
    case = _case(scrapes, (*expressions, _WATCHED))
    *found, watched = ask(case, RULES, f"{interval:g}s", directory, every_rule=True)
    assert len(watched) == shape.ranks, "rules that see no ranks prove nothing by silence"
    return found


def outcome_of_alerts(firing: Sequence[Mapping[str, str]], phases: Sequence[Mapping[str, str]]) -> Outcome:
    """Fails where alerts report several causes, or phases of slow ranks, at once."""
    firing = [each for each in firing if each.get("cause") in set(Cause)]  # slower steps alone name none
    named = {int(each["rank"]) for each in firing if each["cause"] == Cause.SLOW_RANK}
    causes = {Cause(each["cause"]) for each in firing}
    grown = {SlowPhase(each["phase"]) for each in phases if int(each["rank"]) in named}
    assert len(causes) <= 1 and len(grown) <= 1, f"several causes at once: {firing}, {phases}"
    return Outcome(
        cause=causes.pop() if causes else Cause.NONE,
        phase=grown.pop() if grown else None,
        ranks=tuple(sorted(named)),
        stages=tuple(sorted({int(each["stage"]) for each in firing if "stage" in each})),
    )


def _case(scrapes: Scrapes, expressions: Sequence[str]) -> dict[str, Any]:
    """A rule test that expects nothing of each expression at the last scrape."""
    interval = f"{scrapes.interval_seconds:g}s"
    end = f"{(scrapes.count - 1) * scrapes.interval_seconds:g}s"
    series = [{"series": name, "values": _written(each)} for name, each in scrapes.values.items()]
    tests = [{"expr": each, "eval_time": end, "exp_samples": []} for each in expressions]
    return {"interval": interval, "input_series": series, "promql_expr_test": tests}


def _written(values: Sequence[float | None]) -> str:
    first, *rest = values
    if first is not None and all(each == first for each in rest):
        return f"{first:.9f}x{len(rest)}"
    return " ".join("_" if each is None else f"{each:.9f}" for each in values)
