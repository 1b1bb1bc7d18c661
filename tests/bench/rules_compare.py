"""`python -m tests.bench.rules_compare OLD_RULES_DIR`, from the root of the repository: rules before and now.

Both are evaluated by promtool over what agents exported in the recorded runs, so that a change of rules shows
as a list: for each recorded series what differs, and for each alert when it fired, and whom it named. At the
end it says that each difference is wanted, or which of them has no reason in `_WANTED`.

OLD_RULES_DIR holds rule files with the default settings (`*.rules.yml`, recording rules first), such as those
of an earlier commit in `alerts/generated`. The recording is slowed down by as much as its settings are faster
than the defaults: times are multiplied, and between two samples counters grow evenly and gauges stay.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rankwatch.conventions.metrics import METRICS, Kind
from rankwatch_alerts import HARDWARE_ALERTS, RuleConfig, alert_groups, recording_groups
from rankwatch_alerts.generation import rule_file
from support.alerts.rule_test import Sample, ask
from support.recorded.runs import CONFIG, INTERVAL_SECONDS, first_moment, last_moment, read

from .result import BenchError, Result, Row, as_markdown, met

NOW = RuleConfig()
SLOWER = NOW.scrape_interval_seconds / CONFIG.scrape_interval_seconds
STEPS = int(INTERVAL_SECONDS / CONFIG.scrape_interval_seconds)
"""Evaluations from one recorded sample to the next."""
LEAD = 120
"""Evaluations before the first sample: moments before it stay above zero."""
SAME = 1e-9
"""Relative difference of values that count as equal."""
_COUNTERS = frozenset(each.name for each in METRICS if each.kind is Kind.COUNTER)
_SECONDS = frozenset(each.name for each in METRICS if each.unit == "seconds")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NAMED = ("run", "rank", "node", "gpu", "device", "stage", "group", "operation", "run_class", "path")
"""Labels that say whom an alert is about."""
_BEFORE = {
    "RunStalled": "mismatch_known=CollectivesDesynchronised.rank_known "
    "mismatch_unknown=CollectivesDesynchronised.rank_unknown",
    "RunFailed": "failed=RunFailed ranks_lost=RankLost killed_while_waiting=RankLost.killed_while_waiting "
    "waited=RankLost.waited restarts_fail=RunCrashLooping",
    "RunSlow": "slow_rank=Straggler slow_stage=SlowStage unequal_batches=UnequalBatches jitter=Jitter "
    "data_loading=SlowDataLoading network=NetworkDegraded =StepTimeRegressed",
    "RunLate": "startup=StartupSlow behind_plan=RunBehindPlan",
    "LossDiverging": "non_finite=LossNonFinite trend=LossDiverging loss_scale=LossScaleCollapsed "
    "norm=NormExploding data_skew=DataSkew",
    "CheckpointAtRisk": "damaged=CheckpointDamaged resume_failed=ResumeFailed disk_full=CheckpointSpaceShort "
    "disk_filling=CheckpointDiskFilling failed=CheckpointFailed stale=CheckpointStale "
    "resumed_from_older=ResumedFromOlder",
    "CheckpointSlow": "one_writer=CheckpointWriterSlow overlap=CheckpointOverlap",
    "SuccessBudget": "day=SuccessBudget.critical period=SuccessBudget.warning restarts=RequeueRate "
    "preemptions=PreemptionStorm",
    "GoodputBudget": "fast=GoodputBudget.critical slow=GoodputBudget.warning",
    "GpusWasted": "idle=GpusIdle mfu=UtilisationLow utilisation=UtilisationLow.gpu",
    "OverBudget": "=ForecastOverBudget",
    "GpuFault": "lost=GpuLost missing=GpusMissing driver_unresponsive=GpuDriverUnresponsive xid=GpuXid "
    "ecc_uncorrected=GpuEccUncorrected needs_reset=GpuNeedsReset nvlink_down=NvlinkDown",
    "GpuDegraded": "=GpuNeedsReplacement throttled=GpuThrottled power_brake=GpuPowerBrake "
    "pcie=GpuPcieDegraded nvlink_errors=NvlinkErrors",
    "LinkDown": "rdma=RdmaLinkDown flapping=RdmaLinkFlapping flapping=NicErrors.flapping nic=NicDown",
    "LinkErrors": "=RdmaCongestion nic=NicErrors rdma=RdmaErrors tcp=TcpRetransmits",
    "HostFault": "clock=ClockWrong clock_differs=ClockWrong.differs oom_kill=OomKill",
    "TelemetryAbsent": "rules_failing=RulesFailing",
    "TelemetryIncomplete": "collector=CollectorFailing records_missed=RecordsMissed "
    "black_boxes=BlackBoxesLeftOut",
}
"""What alerts were called before: reason and old name, if need be with its old reason or severity."""
_WANTED = {
    "a growth counts in one interval, also if scrapes and evaluations have the same moments": (
        "run_state:rankwatch_goodput_ranks:rate run_state:rankwatch_goodput_ranks:mean "
        "run:rankwatch_goodput_requested_ranks:mean run:rankwatch_goodput_allocated_ranks:mean "
        "run:rankwatch_goodput_scheduling:ratio run:rankwatch_goodput_runtime:ratio "
        "run:rankwatch_goodput_ettr:ratio run_state:rankwatch_badput:share "
        "run:rankwatch_cost_per_million_tokens:marginal class:rankwatch_total_rank_seconds:increase "
        "class:rankwatch_good_rank_seconds:increase class:rankwatch_goodput_of_period:ratio "
        "class:rankwatch_goodput_budget_left:ratio class:rankwatch_run_starts:increase "
        "class:rankwatch_run_restarts:ratio"
    ),
    "the same; and no series for `down`, which costs nothing": "run_state:rankwatch_cost_per_hour:sum",
    "a lost GPU is paid for and does nothing": "run:rankwatch_gpu_utilization:mean",
    "its label `replica` is called `data_parallel`": "rank:rankwatch_straggler_candidate:replica",
    "there from the first run on, not from its end": "class:rankwatch_run_success_objective:ratio",
    "from the runs that were there, not from a setting": "class:rankwatch_runs_failed_limit:count",
    "read only where every rank waits": (
        "rank_group:rankwatch_collective_last_completed:stalled group:rankwatch_stall_waiting:share"
    ),
    "of ended ranks only": "rank:rankwatch_stall_waited:seconds",
    "asked of the lost ranks only, by the rules that need it": "rank:rankwatch_stall_alive:bool",
    "its group is evaluated half as often, while promtool evaluates all groups at one pace": (
        "run:rankwatch_failure_interval_seconds:mean"
    ),
    "of ranks that do not wait, or where all do": "rank_group:rankwatch_collective_last_enqueued:stalled",
    "the alert looks up who was on the node": "rank:rankwatch_rank_silent_step:last",
    "boards show alerts whether they are held back or not": "alert:rankwatch_held_back:bool",
    "alerts on hardware name node and part, whichever run is there": (
        "node:rankwatch_node_user:info node:rankwatch_network_user:info "
        "node:rankwatch_rank_start_timestamp_seconds:latest_on_many_nodes"
    ),
    "the alert LinkDown asks itself": "device:rankwatch_network_down:bool",
    "the series that was copied from it is a rule itself": (
        "group:rankwatch_network_degraded:estimate run:rankwatch_jitter:estimate "
        "run:rankwatch_slow_data_loading:estimate run:rankwatch_unequal_batches:estimate "
        "stage:rankwatch_slow_stage:estimate"
    ),
    "run:rankwatch_alerting:info says which runs page": "run:rankwatch_run_small:bool",
    "the alert RunSlow takes the mean cost of some minutes": "rank:rankwatch_straggler_costly:slowdown",
    "one rule for both ways to see a wrong clock: it must last": "HostFault/clock",
    "it must last, and a page is only for classes that page": "LossDiverging/non_finite",
    "a page is only for classes that page": "RunFailed/failed RunFailed/restarts_fail",
    "one alert for a rank, not two": "RunSlow/slow_rank",
}
"""Why a difference to the rules of commit 938fb046 is wanted, and the series and alerts that have it."""

Labels = tuple[tuple[str, str], ...]
Series = Mapping[str, Mapping[Labels, Mapping[int, float]]]
"""Name -> labels -> number of the recorded moment -> value."""


class Fired(NamedTuple):
    """An alert, as the rules of today call it."""

    what: str
    whom: str


class When(NamedTuple):
    """Its first and last recorded moment, and its severities."""

    first: int
    last: int
    severities: frozenset[str]

    def __str__(self) -> str:
        times = " to ".join(f"{moment * INTERVAL_SECONDS} s" for moment in (self.first, self.last))
        return f"{times}, {' and '.join(sorted(self.severities))}"


def recorded() -> list[dict[str, str]]:
    """What agents exported, as series of a rule test."""
    lines = read()
    start = first_moment(lines)
    count = round((last_moment(lines) - start) / INTERVAL_SECONDS) + 1
    found: dict[str, list[float | None]] = {}
    for series, value, moment in (line.rsplit(" ", 2) for line in lines):
        if ":" not in series.partition("{")[0] and not series.startswith("ALERTS"):
            samples = found.setdefault(series, [None] * count)
            samples[round((float(moment) - start) / INTERVAL_SECONDS)] = _slowed(series, float(value), start)
    return [{"series": series, "values": _written(series, samples)} for series, samples in found.items()]


def _slowed(series: str, value: float, start: float) -> float:
    name = series.partition("{")[0]
    if name.endswith("_timestamp_seconds"):
        return (value - start) * SLOWER + LEAD * NOW.scrape_interval_seconds if value else 0.0
    return value * SLOWER if name in _SECONDS else value


def _written(series: str, samples: Sequence[float | None]) -> str:
    """In the notation of promtool. A series that ends does so at once, as after a scrape without it."""
    grows = series.partition("{")[0] in _COUNTERS
    parts, before = [f"_x{LEAD}"], None
    for value, following in pairwise([*samples, None]):
        if value is None:
            parts.append(f"_x{STEPS}" if before is None else f"stale _x{STEPS - 1}")
        elif grows and following is not None and following > value:
            parts += [f"{value + (following - value) * step / STEPS:.9g}" for step in range(STEPS)]
        else:
            parts += [f"{value!r}".replace("nan", "NaN").replace("inf", "Inf")] * STEPS
        before = value
    return " ".join(parts)


def in_order(groups: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rules as one group, each behind those that it reads. promtool evaluates groups one after the other,
    so that another order of groups would look like another rule."""
    rules = [rule for group in groups for rule in group["rules"]]
    named: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        named.setdefault(rule.get("record", ""), []).append(number)
    ordered: dict[int, Mapping[str, Any]] = {}
    begun: set[int] = set()

    def add(number: int) -> None:
        if number not in begun:  # rules may read each other, as they were a moment ago
            begun.add(number)
            for name in _NAME.findall(rules[number]["expr"]):
                for each in named.get(name, ()):
                    add(each)
            ordered[number] = rules[number]

    for number in range(len(rules)):
        add(number)
    return [{"name": "all", "rules": [*ordered.values()]}]


def evaluated(groups: Iterable[Mapping[str, Any]], series: list[dict[str, str]], moments: int) -> Series:
    """What the rules record, and their alerts, at each recorded moment."""
    interval = f"{NOW.scrape_interval_seconds:g}s"
    tests = [
        {
            "expr": f'{{__name__=~".+:.+|ALERTS", __name__!="{moment}"}}',  # each expression is another one
            "eval_time": f"{(LEAD + moment * STEPS) * NOW.scrape_interval_seconds:g}s",
            "exp_samples": [],
        }
        for moment in range(moments)
    ]
    case = {"interval": interval, "input_series": series, "promql_expr_test": tests}
    with tempfile.TemporaryDirectory() as name:
        answers = ask(case, list(groups), interval, Path(name), every_rule=True)
    return _by_series(answers)


def _by_series(answers: Iterable[Iterable[Sample]]) -> Series:
    found: dict[str, dict[Labels, dict[int, float]]] = {}
    for moment, samples in enumerate(answers):
        for labels, value in samples:
            key = tuple(sorted((name, text) for name, text in labels.items() if name != "__name__" and text))
            found.setdefault(labels["__name__"], {}).setdefault(key, {})[moment] = value
    return found


def compared(name: str, old: Series, new: Series) -> Row:
    """One recorded series by both."""
    before, after = (
        {
            (labels, moment): value
            for labels, one in each.get(name, {}).items()
            for moment, value in one.items()
        }
        for each in (old, new)
    )
    both = before.keys() & after.keys()
    differences = [_difference(before[each], after[each]) for each in both]
    changed = [each for each in differences if each > SAME]
    only = (len(before.keys() - both), len(after.keys() - both))
    if not changed and not any(only):
        return Row(name, f"equal, {len(both)} samples" if both else "no samples")
    largest = f"largest difference {max(changed):.2%}" if changed else ""
    return Row(
        name, f"changed: {len(changed)} of {len(both)}, {only[0]} only old, {only[1]} only new", largest
    )


def _difference(one: float, other: float) -> float:
    if one == other or (one != one and other != other):
        return 0.0
    return abs(one - other) / max(abs(one), abs(other))


def fired(series: Series) -> Mapping[Fired, When]:
    """When each alert fired, and as what."""
    found: dict[Fired, When] = {}
    for key, samples in series.get("ALERTS", {}).items():
        labels = dict(key)
        if labels["alertstate"] == "firing":
            alert, severities = _now_called(labels), frozenset({labels.get("severity", "no severity")})
            first, last, others = found.get(alert, When(min(samples), max(samples), severities))
            found[alert] = When(min(first, *samples), max(last, *samples), others | severities)
    return found


def _now_called(labels: Mapping[str, str]) -> Fired:
    renamed = {
        old: (new, reason)
        for new, reasons in _BEFORE.items()
        for reason, _, old in (each.partition("=") for each in reasons.split())
    }
    name, reason = (
        labels["alertname"].removeprefix("Rankwatch"),
        labels.get("reason") or labels.get("cause", ""),
    )
    if "product" not in labels:  # alerts had none when they had their old names
        name, other = renamed.get(f"{name}.{reason or labels['severity']}") or renamed.get(name, (name, ""))
        reason = other or reason
    hidden = ("run", "rank") if f"Rankwatch{name}" in HARDWARE_ALERTS else ()
    whom = (f"{each}={labels[each]}" for each in _NAMED if each in labels and each not in hidden)
    return Fired("/".join(filter(None, (name, reason))), " ".join(whom))


def result(directory: Path) -> Result:
    """The lists, from the rules of the directory and those of today."""
    present: Any = rule_file(NOW, (*recording_groups(NOW), *alert_groups(NOW)))
    old_groups, groups = _groups(directory), present["groups"]
    lines, series = read(), recorded()
    moments = round((last_moment(lines) - first_moment(lines)) / INTERVAL_SECONDS) + 1
    old, new = (evaluated(in_order(each), series, moments) for each in (old_groups, groups))
    rows = (
        *_of_records(_records(old_groups), _records(groups), old, new),
        *_of_alerts(fired(old), fired(new)),
    )
    unwanted = [row.what for row in rows if row.met is False]
    return Result(
        title="Rules on the recorded runs, before and now",
        rows=rows,
        notes=(
            f"{moments} moments, {INTERVAL_SECONDS} s apart in the recording, by the default settings.",
            "A sample is one series at one of these moments.",
            f"No reason for: {', '.join(unwanted)}." if unwanted else "Each difference is wanted.",
        ),
    )


def _judged(row: Row, name: str) -> Row:
    """With the reason for which its difference is wanted: a target that is missed where there is none."""
    why = next((why for why, names in _WANTED.items() if name in names.split()), "")
    return row._replace(target=why or "no difference", met=bool(why))


def _groups(directory: Path) -> list[Mapping[str, Any]]:
    """Groups of all rule files, those that record first. Raises BenchError."""
    files = sorted(directory.glob("*.rules.yml"), reverse=True)
    if not files:
        raise BenchError(f"{directory} holds no *.rules.yml")
    return [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]


def _records(groups: Iterable[Mapping[str, Any]]) -> set[str]:
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


def _of_records(before: set[str], now: set[str], old: Series, new: Series) -> Iterator[Row]:
    for name in sorted(before & now):
        row = compared(name, old, new)
        yield _judged(row, name) if row.measured.startswith("changed") else row
    for name in sorted(before - now):
        yield _judged(Row(name, f"gone, {_samples(old, name)} samples"), name)
    for name in sorted(now - before):
        yield Row(name, f"new, {_samples(new, name)} samples")


def _samples(series: Series, name: str) -> int:
    return sum(map(len, series.get(name, {}).values()))


def _of_alerts(before: Mapping[Fired, When], now: Mapping[Fired, When]) -> Iterator[Row]:
    for alert in sorted({*before, *now}):
        old, new = (str(each[alert]) if alert in each else "never" for each in (before, now))
        row = Row(f"{alert.what} {alert.whom}", f"now {new}", f"before {old}")
        yield row if old == new else _judged(row, alert.what)


def main(arguments: Sequence[str]) -> int:
    """Print the lists; exit status 1 if there was nothing to compare with, or a difference is not wanted."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rules_compare", description=__doc__)
    parser.add_argument("old_rules_dir", type=Path)
    try:
        found = result(parser.parse_args(arguments).old_rules_dir)
    except BenchError as error:
        print(f"rules_compare: {error}", file=sys.stderr)
        return 1
    print(as_markdown(found))
    return 0 if met(found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
