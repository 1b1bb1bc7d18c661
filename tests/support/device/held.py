"""What the rules say of jobs on simulated devices: each goes on for as long as the rules need, as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

from rankwatch.conventions.metrics import Kind
from rankwatch.conventions.states import Cause
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.training.collector import RanksCollector
from support.alerts.rule_test import Sample, ask
from support.device.jobs import CAUSES, LEAST_SLOWDOWN, PHASES, UNEVEN, Result, residual_complaints
from support.diagnosis.both_forms import (
    FIRING,
    PHASES_OF_NAMED,
    RULES,
    SCRAPE_SECONDS,
    Outcome,
    outcome_of_alerts,
)

YOUNG, OLD = 11, 45
"""Minutes: too short to have learnt the spread of the run, and long enough."""
_EXPRESSIONS = {
    "old": FIRING,
    "young": f"{FIRING} offset {OLD - YOUNG}m",
    "phases": PHASES_OF_NAMED,
    "residuals": "rank:rankwatch_step_local_seconds:residual",
    "slowdowns": "rank:rankwatch_straggler:slowdown",
    "thresholds": "run:rankwatch_straggler_residual:threshold",
    "steps": "run:rankwatch_step_seconds:mean",
}
_READ = frozenset(re.findall(r"\brankwatch_\w+", json.dumps(RULES)))
_SETTLED_SECONDS = 1.0
_COST_SHARE, _UNEVEN_COST_SHARE = 0.02, 0.05
"""Part of the step by which the price of a slow rank may differ from the truth. Where ranks have uneven work,
another one may be last at each collective, which figures of whole steps do not show."""


class Exported(Result):
    """A job whose boxes a real agent has read, once all ranks have done their first steps and at the end."""

    steps_on_host = 0
    series: Sequence[Series]
    of_living: Sequence[Series]
    """What the agent exported after the first steps, had the ranks been processes that live."""
    seconds: float
    """How long all of it took."""

    def _run(self) -> None:
        self._now = began = self._end()
        self._agent = RanksCollector(
            directory=self.directory, monotonic=lambda: self._now, wall=lambda: self._now
        )
        super()._run()
        self.seconds = self._end() - began
        self._now = self._end() + _SETTLED_SECONDS
        self.series = self._agent.collect().series

    def _warmed(self, now: float) -> None:
        super()._warmed(now)
        if len(self._warm) == len(self.ranks):
            self._now = self._end()
            with patch("rankwatch_agent.training.series.ENDED_STATES", frozenset()):
                self.of_living = self._agent.collect().series


class Judged:
    """A job, and the samples that the rules have of it, by the name of the expression."""

    def __init__(self, job: Exported, samples: Mapping[str, Sequence[Sample]]) -> None:
        self.job = job
        self._samples = samples

    @cached_property
    def outcome(self) -> Outcome:
        """What the alerts conclude once the run is old."""
        old, phases = ([each.labels for each in self._samples[name]] for name in ("old", "phases"))
        return outcome_of_alerts(old, phases)

    def named(self, age: str) -> set[int]:
        """Ranks that an alert names while the run is `young` or `old`."""
        alerts = [each.labels for each in self._samples[age]]
        return {int(each["rank"]) for each in alerts if each.get("cause") == Cause.SLOW_RANK}

    def by_rank(self, name: str) -> dict[int, float]:
        """`residuals` or `slowdowns`."""
        return {int(each.labels["rank"]): each.value for each in self._samples[name]}

    def of_run(self, name: str) -> float | None:
        """The threshold of residuals (`thresholds`), or the time of a step (`steps`)."""
        values = [each.value for each in self._samples[name]]
        return values[0] if values else None


def judged(jobs: Mapping[str, Exported], directory: Path) -> dict[str, Judged]:
    """Evaluate the rules over all jobs, each as a cluster of its own; files are written to the directory.

    Gauges stay as the agent exports them, and counters grow as they did.
    """
    scrapes = OLD * 60 // int(SCRAPE_SECONDS)
    series = [each for name, job in jobs.items() for each in _held(name, job, scrapes)]
    tests = [{"expr": each, "eval_time": f"{OLD}m", "exp_samples": []} for each in _EXPRESSIONS.values()]
    interval = f"{SCRAPE_SECONDS:g}s"
    case = {"interval": interval, "input_series": series, "promql_expr_test": tests}
    answers = ask(case, RULES, interval, directory, every_rule=True)
    found: dict[str, dict[str, list[Sample]]] = {name: {each: [] for each in _EXPRESSIONS} for name in jobs}
    for expression, samples in zip(_EXPRESSIONS, answers, strict=True):
        for sample in samples:
            found[sample.labels["cluster"]][expression].append(sample)
    return {name: Judged(job, found[name]) for name, job in jobs.items()}


def _held(cluster: str, job: Exported, scrapes: int) -> Iterator[dict[str, str]]:
    for each in job.series:
        if each.metric.name not in _READ:
            continue
        labels = {**dict(zip(each.metric.labels, each.labels, strict=True)), "cluster": cluster, "node": "n"}
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        growth = each.value / job.seconds * SCRAPE_SECONDS if each.metric.kind is Kind.COUNTER else 0.0
        values = f"{each.value:.12f}+{growth:.12f}x{scrapes}"
        yield {"series": f"{each.metric.name}{{{text}}}", "values": values}


def complaints_about_rules(judged: Judged, healthy: Exported) -> Iterator[str]:
    """What is wrong with what the rules say of a job, in words."""
    job, outcome = judged.job, judged.outcome
    fault, blamed = job.job.fault, job.job.blamed
    yield from (
        f"rank {each} is named" for each in judged.named("young") | judged.named("old") if each != blamed
    )
    if not job.job.of.sees_waits:
        if judged.by_rank("residuals"):
            yield "there are residuals without local times"
        return
    yield from residual_complaints(job, blamed, judged.by_rank("residuals"))
    if blamed is None:
        allowed = CAUSES.get(fault.what, ()) if fault is not None else ()
        if outcome.cause not in (Cause.NONE, *allowed):
            yield f"the cause is {outcome.cause}"
        return
    assert fault is not None
    truth = job.step_seconds / healthy.step_seconds
    if not outcome.ranks and not _must_be_named(judged, blamed, truth):
        return
    if outcome != Outcome(Cause.SLOW_RANK, PHASES[fault.what], ranks=(blamed,)):
        yield f"{outcome} instead of slow rank {blamed}"
    price = judged.by_rank("slowdowns").get(blamed, 1.0)
    allowed_share = _UNEVEN_COST_SHARE if job.job.program in UNEVEN else _COST_SHARE
    if abs(price / truth - 1.0) > allowed_share:
        yield f"the price is {price:.3f}, truly {truth:.3f}"


def _must_be_named(judged: Judged, blamed: int, truth: float) -> bool:
    """A rank above the threshold that costs clearly more than the least share of the step."""
    threshold = judged.of_run("thresholds")
    assert threshold is not None
    return truth > 2 * LEAST_SLOWDOWN - 1 and judged.by_rank("residuals")[blamed] > threshold
