"""Alerts on money."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

from rankwatch.conventions.cost import CPU_MODEL
from rankwatch_alerts.alerting.alert import OF_RUN, alert_rule, looked_up, matching, opened_on
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.objectives import DEFAULT_CLASS
from rankwatch_alerts.recording.money import FORECAST, GPU_UTILISATION, MFU, PER_HOUR, STEPS
from rankwatch_alerts.rules import CHECKPOINTS_GOODPUT_UID, RUN, Alert, AlertRule, Severity, duration

_BOARD = opened_on(CHECKPOINTS_GOODPUT_UID, "cluster", "run")


def forecast_over_budget(config: RuleConfig) -> AlertRule:
    """At its present pace and cost, a run will have spent more than its budget at its last step."""
    return alert_rule(
        config,
        Alert.FORECAST_OVER_BUDGET,
        f"{FORECAST} > 1",
        for_seconds=config.cost_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="A run will cost more than its budget.",
        description=(
            "Run {{ $labels.run }} comes to {{ $value | humanizePercentage }} of its budget in "
            "{{ $labels.currency }} ({{ $labels.basis }}) at its last step, if it goes on at its present "
            "pace. [[Look what its time goes to]] before you raise the budget."
        ),
        dashboard=_BOARD,
    )


def gpus_idle(config: RuleConfig) -> AlertRule:
    """The mean of a run: with one rank waiting, all others of a synchronous run wait as well.

    NCCL waits in a kernel, which counts as utilisation: a run that hangs in it has the alert on stalls.
    """
    used = f"by {{{{ $value | humanizePercentage }}}} for {duration(config.gpu_idle_for_seconds)}"
    charged = looked_up(
        f'sum(rankwatch_run_allocated_gpus{{gpu_model!="{CPU_MODEL}", cluster=%q, run=%q}})',
        OF_RUN,
        f'its {{{{ . | first | value | printf "%.0f" }}}} GPUs {used}, and pays for all of them',
        f"the GPUs of its nodes {used}: its ranks use none, and train on the CPU",
    )
    return alert_rule(
        config,
        Alert.GPUS_IDLE,
        f"{GPU_UTILISATION} < {config.gpu_idle_utilization:g}",
        for_seconds=config.gpu_idle_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary="GPUs are charged to a run and do nothing.",
        description=(
            f"Run {{{{ $labels.run }}}} has used {charged}. [[Look which phase its ranks are in]]; end it if "
            "nobody waits for it."
        ),
        dashboard=_BOARD,
    )


def utilisation_low(config: RuleConfig) -> tuple[AlertRule, ...]:
    """Tickets, by what the GPUs report and by what the model computes; silent where neither is known."""
    return (
        _utilisation_low(
            config,
            "gpu",
            _below(GPU_UTILISATION, config.gpu_utilization_objectives),
            "Its GPUs were busy for {{ $value | humanizePercentage }} of the time",
            config.gpu_utilization_objectives,
            "They wait for the host: [[look for waits for data, copies, checkpoints]] and small kernels.",
        ),
        _utilisation_low(
            config,
            "mfu",
            _below(f'max by ({RUN}) ({MFU}{{dtype="{config.mfu_dtype}"}})', config.mfu_objectives),
            "Its model used {{ $value | humanizePercentage }} of the peak of its GPUs in "
            f"{config.mfu_dtype}",
            config.mfu_objectives,
            "[[Look how its step divides into computing and waiting]], and take a profile of one rank.",
        ),
    )


def _below(series: str, objectives: Mapping[str, float]) -> str:
    """Runs that make steps, and are below the objective of their class."""
    named = [each for each in objectives if each != DEFAULT_CLASS]
    of_class = {each: f'on ({RUN}) rankwatch_run_info{{run_class="{each}"}}' for each in named}
    parts = [f"{series} < {objectives[each]:g}\nand {of_class[each]}" for each in named]
    others = "".join(f"\nunless {of_class[each]}" for each in named)
    parts.append(f"{series} < {objectives[DEFAULT_CLASS]:g}{others}")
    either = "\nor\n".join(parts)
    return f"(\n{indent(either, '  ')}\n)\nand on ({RUN})\n{STEPS}"


def _utilisation_low(
    config: RuleConfig, reason: str, expression: str, used: str, objectives: Mapping[str, float], first: str
) -> AlertRule:
    least = ", ".join(f"{each} {objectives[each]:.0%}" for each in sorted(objectives))
    cost = looked_up(
        f"{PER_HOUR}{matching(OF_RUN)}",
        OF_RUN,
        '{{ with . | first }} It costs {{ .Value | printf "%.2f" }} {{ .Labels.currency }} an hour.{{ end }}',
        "",
    )
    return alert_rule(
        config,
        Alert.UTILISATION_LOW,
        expression,
        for_seconds=config.gpu_idle_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        labels={"reason": reason},
        summary="A run makes steps, but uses little of its GPUs.",
        description=(
            f"Run {{{{ $labels.run }}}} makes steps with little of what it pays for. {used}, for "
            f"{duration(config.gpu_idle_for_seconds)}; least by class: {least}.{cost} {first}"
        ),
        dashboard=_BOARD,
    )


def price_unknown(config: RuleConfig) -> AlertRule:
    """Only where anything has a price: a cluster without a price table wants none."""
    return alert_rule(
        config,
        Alert.PRICE_UNKNOWN,
        """
            min by (cluster, run, gpu_model) (rankwatch_run_price_known) == 0
            and on (cluster)
            group by (cluster) (rankwatch_gpu_price_per_hour)
        """,
        for_seconds=config.cost_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.INFO,
        summary="A run uses something that has no price.",
        description=(
            "The price table has no valid price for {{ $labels.gpu_model }}, which run {{ $labels.run }} "
            "uses. Its cost is not complete. [[Add a price]], or one that follows the price that has ended."
        ),
        dashboard=_BOARD,
    )
