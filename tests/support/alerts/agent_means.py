"""What agents export of recent steps, from the counters of the same ranks: so rule tests state counters only.

The agents' own means have tests of their own (tests/agent/training/test_recent.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rankwatch.conventions.metrics import OF_RANKS_THAT_HAD_THEM, OF_RUNNING_RANKS
from rankwatch.conventions.states import STEP_PHASES
from rankwatch_alerts import RuleConfig
from rankwatch_alerts.rules import duration

RANK = "cluster, run, rank, node"
AGENT_GROUP = "agent"
_STEPS = "agent:steps:rate"
_LOCAL = "rankwatch_recent_step_local_seconds"
_NODE = "cluster, run, node"
_PAIRS = {"work": ("local", "work"), "microbatches": ("forward", "backward")}

_LABELS = {
    "rankwatch_step_phase_seconds_total": "phase",
    "rankwatch_scalar_nonfinite_total": "name",
    "rankwatch_checkpoint_operations_total": "operation",
    "rankwatch_step_variation_total": "term",
}
"""Of the value without which a metric does not count."""


def agent_group(config: RuleConfig) -> dict[str, Any]:
    """A group of rules, to be evaluated before all others."""
    window = duration(config.step_window_seconds)
    rules = [{"record": record, "expr": expression} for record, expression in _rules(window, config)]
    return {"name": AGENT_GROUP, "interval": duration(config.scrape_interval_seconds), "rules": rules}


def _rules(window: str, config: RuleConfig) -> Iterator[tuple[str, str]]:
    def rate(counter: str, by: str = RANK) -> str:
        return f"sum by ({by}) (rate({counter}[{window}]))"

    def mean(counter: str) -> str:
        return f"{rate(counter)} / on ({RANK}) group_right () sum by ({RANK}, stage) ({_STEPS})"

    placed = f"group by ({RANK}, stage, data_parallel) (last_over_time(rankwatch_rank_info[{window}]))"
    yield (
        _STEPS,
        f"({rate('rankwatch_steps_total')} > 0) * on ({RANK}) group_left (stage, data_parallel) "
        f"({placed} unless on ({RANK}) (count by ({RANK}) ({placed}) > 1))",
    )
    yield (
        _LOCAL,
        f"{rate('rankwatch_step_local_seconds_total')} / on ({RANK}) group_right () {_STEPS}",
    )
    local = f"sum by ({RANK}, stage) ({_LOCAL})"
    yield (
        "rankwatch_recent_step_arrival_seconds",
        f"{local} + on ({RANK}, stage) {mean('rankwatch_step_message_seconds_total')} or {local}",
    )
    not_compute = 'rankwatch_step_phase_seconds_total{phase=~"data_wait|checkpoint|evaluation"}'
    yield (
        "rankwatch_recent_step_compute_seconds",
        f"{local} - on ({RANK}, stage) ({mean(not_compute)}) or {local}",
    )
    for phase, parts in STEP_PHASES.items():
        counter = f'rankwatch_step_phase_seconds_total{{phase=~"{"|".join(parts)}"}}'
        expression = f'label_replace({mean(counter)}, "phase", "{phase}", "", "")'
        yield "rankwatch_recent_step_phase_seconds", expression
    phases = "quantile by (cluster, run, node, stage, phase) (0.5, rankwatch_recent_step_phase_seconds)"
    yield "rankwatch_recent_stage_phase_seconds", phases
    tokens = mean('rankwatch_work_total{unit="tokens"}')
    yield "rankwatch_recent_step_tokens", f"{tokens} > 0"
    yield (
        "rankwatch_recent_token_local_seconds",
        f"{local} / on ({RANK}, stage) rankwatch_recent_step_tokens",
    )
    seconds = mean("rankwatch_step_seconds_total")
    yield (
        "rankwatch_recent_data_wait_ratio",
        f'sum by ({RANK}, stage) (rankwatch_recent_step_phase_seconds{{phase="data_loading"}}) '
        f"/ on ({RANK}, stage) ({seconds} > 0)",
    )
    late = mean("rankwatch_late_step_seconds_total")
    none = f"0 * {local}"
    yield "rankwatch_recent_late_steps_ratio", f"{mean('rankwatch_late_steps_total')} or {none}"
    yield "rankwatch_recent_late_step_seconds", f"{late} or {none}"
    long = duration(config.cause_for_seconds)
    yield (
        "rankwatch_recent_late_step_long_seconds",
        f"avg_over_time(rankwatch_recent_late_step_seconds[{long}])",
    )
    yield "rankwatch_recent_run_step_seconds", f"quantile by ({_NODE}) (0.5, {seconds})"
    yield from _late(f"avg_over_time(rankwatch_recent_late_step_seconds[{long}])")
    yield from _stages()
    waiting = f"1 - {local} / on ({RANK}, stage) ({seconds} > 0)"
    yield "rankwatch_recent_run_waiting_ratio", f"quantile by ({_NODE}) (0.5, {waiting})"
    yield from _variation(mean)
    yield from _sums(config)


def _late(long: str) -> Iterator[tuple[str, str]]:
    """Of the ranks of a node: sums, and the two that are most late."""
    late = "rankwatch_recent_late_step_seconds"
    yield "rankwatch_recent_run_late_step_seconds", f"sum by ({_NODE}) ({late})"
    yield "rankwatch_recent_run_late_step_long_seconds", f"sum by ({_NODE}) ({long})"
    yield (
        "rankwatch_recent_run_late_ranks",
        f"count by ({_NODE}) ({long} > 0) or 0 * count by ({_NODE}) ({late})",
    )
    most = f"topk by ({_NODE}) (1, {long})"
    yield "rankwatch_recent_run_most_late_step_seconds", f"max by ({_NODE}) ({late} and on ({RANK}) {most})"
    yield "rankwatch_recent_run_most_late_step_long_seconds", f"max by ({_NODE}) ({long})"
    second = f"min by ({_NODE}) (topk by ({_NODE}) (2, {long}))"
    ranks = f"count by ({_NODE}) ({late})"
    yield (
        "rankwatch_recent_run_second_late_step_long_seconds",
        f"{second} and on ({_NODE}) ({ranks} > 1) or 0 * {ranks}",
    )


def _stages() -> Iterator[tuple[str, str]]:
    """Of the ranks of a stage on a node."""
    stage = f"{_NODE}, stage"
    tokens = "rankwatch_recent_step_tokens"
    medians = {
        "compute_seconds": "rankwatch_recent_step_compute_seconds",
        "data_wait_ratio": "rankwatch_recent_data_wait_ratio",
    }
    for name, value in medians.items():
        yield f"rankwatch_recent_stage_{name}", f"quantile by ({stage}) (0.5, {value})"
    yield "rankwatch_recent_stage_ranks", f"count by ({stage}) ({_LOCAL})"
    yield "rankwatch_recent_stage_token_ranks", f"count by ({stage}) ({tokens})"
    compute = "rankwatch_recent_step_compute_seconds"
    yield "rankwatch_recent_stage_least_compute_seconds", f"min by ({stage}) ({compute})"
    yield "rankwatch_recent_stage_most_tokens", f"max by ({stage}) ({tokens})"
    most = f"topk by ({stage}) (1, {tokens})"
    yield (
        "rankwatch_recent_stage_most_tokens_local_seconds",
        f"max by ({stage}) ({_LOCAL} and on ({RANK}, stage) {most})",
    )


def _variation(mean: Any) -> Iterator[tuple[str, str]]:
    def term(name: str) -> str:
        return mean(f'rankwatch_step_variation_total{{term="{name}"}}')

    on = f"on ({RANK}, stage)"
    yield "rankwatch_recent_run_step_variance_ratio", f"quantile by ({_NODE}) (0.5, {term('local')})"
    for reason, (one, other) in _PAIRS.items():
        both, first, second = term(f"{one}_and_{other}"), term(one), term(other)
        covariance = f"((({both}) - {on} ({first}) - {on} ({second})) / 2)"
        correlation = f"{covariance} / {on} sqrt(({first}) * {on} ({second}) > 0)"
        work = f"({covariance} > 0) / {on} sqrt(({second}) > 0)"
        microbatches = f"sqrt(({covariance} > 0) / {on} ({mean('rankwatch_step_microbatches_total')} > 0))"
        sigma = work if reason == "work" else microbatches
        for name, each in (("covariance", covariance), ("correlation", correlation), ("sigma", sigma)):
            median = f"quantile by ({_NODE}) (0.5, {each})"
            record = f"rankwatch_recent_run_{name}_ratio"
            yield record, f'label_replace({median}, "reason", "{reason}", "", "")'


def _events(config: RuleConfig) -> Iterator[tuple[str, str]]:
    """When a counter of something rare last rose, or was first seen above zero."""
    interval = config.scrape_interval_seconds
    for record, counter, by in (
        (
            "rankwatch_checkpoint_last_failure_timestamp_seconds",
            'rankwatch_checkpoint_operations_total{outcome="failure"}',
            f"{RANK}, operation",
        ),
        (
            "rankwatch_scalar_last_nonfinite_timestamp_seconds",
            "rankwatch_scalar_nonfinite_total",
            f"{RANK}, name",
        ),
        (
            "rankwatch_norm_last_explosion_timestamp_seconds",
            "rankwatch_norm_explosions_total",
            f"{RANK}, name",
        ),
        (
            "rankwatch_blackbox_last_fault_timestamp_seconds",
            "rankwatch_blackbox_faults_total",
            "cluster, node, reason",
        ),
    ):
        before = f"last_over_time({counter}[5m] offset {duration(interval)})"
        now = f"timestamp({counter} > {before} or {counter} > 0 unless {before})"
        yield record, f"max by ({by}) ({now}) or max by ({by}) (last_over_time({record}[1h]))"


def _totals(living: str) -> Iterator[tuple[str, str]]:
    """Counters of the ranks of a node, and what rules ask of those that run."""
    operations = 'rankwatch_checkpoint_operations_total{operation="save", outcome="success"}'
    for name, aggregated in {
        "steps_total": "max by ({node}) (rankwatch_steps_total)",
        "step": "max by ({node}) (rankwatch_step)",
        "records_total": "sum by ({node}) (rankwatch_blackbox_records_total)",
        "records_missed_total": "sum by ({node}) (rankwatch_blackbox_records_missed_total)",
        "checkpoint_saves_total": f"max by ({{node}}) ({operations})",
        "checkpoint_save_seconds_total": (
            'max by ({node}) (rankwatch_checkpoint_operation_seconds_total{operation="save"})'
        ),
        "checkpoint_save_blocking_seconds_total": (
            'max by ({node}) (rankwatch_checkpoint_blocking_seconds_total{operation="save"})'
        ),
        "gpus": f"count by ({{node}}) (group by ({RANK}) (rankwatch_rank_gpu_info) {living})",
        "target_steps": f"max by ({{node}}) (rankwatch_target_steps {living})",
        "restored_step": f"max by ({{node}}) (rankwatch_rank_restored_step {living})",
        "checkpoint_bytes": f"sum by ({{node}}) (rankwatch_checkpoint_bytes {living})",
    }.items():
        yield f"rankwatch_node_{name}", aggregated.replace("{node}", _NODE)
    tokens = 'rankwatch_work_total{unit="tokens"}'
    of_replicas = (
        f"sum by ({RANK}, data_parallel) ({tokens} * on ({RANK}) group_left (data_parallel) "
        f'group by ({RANK}, data_parallel) (rankwatch_rank_info{{data_parallel!=""}}))'
    )
    yield (
        "rankwatch_node_tokens_total",
        f"max by ({_NODE}, data_parallel) ({of_replicas}) or "
        f'sum by ({_NODE}) ({tokens} unless on ({RANK}) rankwatch_rank_info{{data_parallel!=""}})',
    )


def _sums(config: RuleConfig) -> Iterator[tuple[str, str]]:
    """What agents add up by node."""
    alive = 'state=~"starting|running"'
    yield "rankwatch_node_ranks", f"count by ({_NODE}, state) (rankwatch_rank_state == 1)"
    living = f'and on ({RANK}) (rankwatch_rank_state{{state=~"starting|running"}} == 1)'
    starts = f"rankwatch_rank_start_timestamp_seconds {living}"
    yield "rankwatch_node_first_start_timestamp_seconds", f"min by ({_NODE}) ({starts})"
    yield "rankwatch_node_last_start_timestamp_seconds", f"max by ({_NODE}) ({starts})"
    progress = f"rankwatch_progress_timestamp_seconds {living}"
    yield (
        "rankwatch_node_progress_timestamp_seconds",
        f"max by ({_NODE}) (max by ({_NODE}) ({progress}) or "
        f'label_replace(max by ({_NODE}) ({starts}), "of", "start", "", ""))',
    )
    timeout = "rankwatch_progress_timeout_seconds"
    yield (
        "rankwatch_node_progress_timeout_seconds",
        f"max by ({_NODE}) ({timeout} {living}) unless on ({_NODE}) "
        f"((rankwatch_rank_state{{{alive}}} == 1) unless on ({RANK}) {timeout})",
    )
    for what in ("step", "timestamp_seconds"):
        saved = f"rankwatch_checkpoint_last_saved_{what}"
        pending = "0 * (rankwatch_checkpoint_saves_pending > 0) - 1"
        yield (
            f"rankwatch_node_checkpoint_saved_{what}",
            f"min by ({_NODE}) (({saved} or on ({RANK}) {pending}) {living})",
        )
        committed = f"rankwatch_checkpoint_last_committed_{what} {living}"
        yield f"rankwatch_node_checkpoint_committed_{what}", f"max by ({_NODE}) ({committed})"
    yield (
        "rankwatch_rank_gpu_start_timestamp_seconds",
        f"rankwatch_rank_gpu_info * on ({RANK}) group_left () ({starts})",
    )
    yield (
        "rankwatch_rank_end_timestamp_seconds",
        f"rankwatch_rank_heartbeat_timestamp_seconds and on ({RANK}) "
        'rankwatch_rank_state{state!~"starting|running"}',
    )
    yield "rankwatch_collectors", "count by (cluster, node) (rankwatch_collector_state)"
    yield from _events(config)
    yield from _totals(living)
    age = "timestamp(rankwatch_collector_last_success_timestamp_seconds)"
    collector = "cluster, node, collector"
    yield (
        "rankwatch_collector_overdue_intervals",
        f"(min by ({collector}) ({age} - rankwatch_collector_last_success_timestamp_seconds) "
        f"/ max by ({collector}) (rankwatch_collector_interval_seconds) >= 2) "
        f'unless max by ({collector}) (rankwatch_collector_state{{state="not_applicable"}})',
    )
    pulls, window = "rankwatch_flight_recorder_pulls_total", duration(config.stall_floor_seconds)
    answers = f'increase({pulls}{{outcome="success"}}[{window}]) > 0'
    yield (
        "rankwatch_flight_recorder_silent_seconds",
        f'0 * sum by ({RANK}) ({answers}) or 0 * sum by ({RANK}) ({pulls}{{outcome="success"}} > 0) '
        f"+ {config.stall_floor_seconds:g}",
    )
    for name, value in (*OF_RUNNING_RANKS.items(), *OF_RANKS_THAT_HAD_THEM.items()):
        label = _LABELS.get(name)
        matchers = f'{{{label}="{value}"}}' if label else ""
        count = f"count by ({_NODE}) (group by ({RANK}) ({name}{matchers}) {living})"
        count += f" or 0 * count by ({_NODE}) (rankwatch_rank_state)"
        yield "rankwatch_node_ranks_reporting", f'label_replace({count}, "name", "{name}", "", "")'
