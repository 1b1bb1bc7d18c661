"""What a run costs: what is charged to it, times the price of the moment. Currencies are never added."""

from __future__ import annotations

from rankwatch.conventions.cost import BASELINE, FLOPS_PER_TOKEN, STEPS_PER_EPOCH, PriceBasis
from rankwatch.conventions.goodput import GoodputState
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.config.work import DTYPES
from rankwatch_alerts.recording.goodput import ALLOCATED, RANKS_BY_STATE
from rankwatch_alerts.recording.life import TIME_TO_COMPLETE
from rankwatch_alerts.rules import RUN, RecordingRule, duration, recorded

PER_HOUR = "run:rankwatch_cost_per_hour:sum"
SPENT = "run:rankwatch_spent:sum"
USED = "run:rankwatch_budget_used:ratio"
FORECAST = "run:rankwatch_budget_forecast:ratio"
STEPS, _TOKENS = "run:rankwatch_steps:rate", "run:rankwatch_tokens:rate"
_PER_TOKENS = "run:rankwatch_cost_per_million_tokens:mean"
MFU = "run:rankwatch_model_flops_utilisation:ratio"
GPU_UTILISATION = "run:rankwatch_gpu_utilization:mean"
MONEY = f"{RUN}, currency, basis"
_ALLOCATED = "max by (cluster, run, node, gpu_model) (rankwatch_run_allocated_gpus)"
"""Once of each node, where an agent has just moved."""


def money_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Cost by hour, state, step and token, what was spent, and what it will come to."""
    return (*_rates(config), *_units(config), *_utilisation(), _scaling(), *_budget())


def _rates(config: RuleConfig) -> tuple[RecordingRule, ...]:
    remembered = duration(config.node_memory_seconds)
    return (
        recorded(PER_HOUR, "or\n".join(map(_per_hour, PriceBasis))),
        recorded(
            SPENT,
            # Of an agent that has moved, what it spent before is the same series with another instance.
            f"""
                sum by ({MONEY}) (
                  max by ({MONEY}, node) (last_over_time(rankwatch_run_spent[{remembered}]))
                )
            """,
        ),
        recorded("run_state:rankwatch_cost_per_hour:sum", "or\n".join(map(_per_state, GoodputState))),
    )


def _per_hour(basis: PriceBasis) -> str:
    """A model has one price of each basis at a time, so what is charged finds at most one."""
    return f"""
        sum by ({MONEY}) (
          {_ALLOCATED}
          * on (cluster, node, gpu_model) group_left (currency, basis)
          max by (cluster, node, gpu_model, currency, basis) (rankwatch_gpu_price_per_hour{{basis="{basis}"}})
        )
    """


def _per_state(state: GoodputState) -> str:
    """One state at a time: a run may have several kinds of money, and each has all states."""
    if state is GoodputState.DOWN:  # without a process nothing is charged
        return f'label_replace(0 * {PER_HOUR}, "state", "{state}", "", "")\n'
    return f"""
        label_replace(
          {PER_HOUR}
          * on ({RUN}) group_left ()
          (sum by ({RUN}) ({RANKS_BY_STATE}{{state="{state}"}}) / on ({RUN}) ({ALLOCATED} > 0)),
          "state", "{state}", "", ""
        )
    """


def _units(config: RuleConfig) -> tuple[RecordingRule, ...]:
    window = duration(config.step_window_seconds)
    of_replicas, of_ranks = (
        f"rate(rankwatch_node_tokens_total{{replica{each}}}[{window}])" for each in ('!=""', '=""')
    )
    per_second = f"{PER_HOUR} / 3600 / on ({RUN}) group_left ()"
    return (
        recorded(STEPS, f"max by ({RUN}) (rate(rankwatch_node_steps_total[{window}])) > 0"),
        recorded(
            _TOKENS,
            # Where ranks state no replica, each has tokens of its own.
            f"""
                sum by ({RUN}) (max by ({RUN}, replica) ({of_replicas})) > 0
                or
                sum by ({RUN}) ({of_ranks}) > 0
            """,
        ),
        recorded("run:rankwatch_cost_per_step:mean", f"{per_second} {STEPS}"),
        recorded(
            "run:rankwatch_cost_per_epoch:mean",
            f"""
                run:rankwatch_cost_per_step:mean
                * on ({RUN}) group_left ()
                max by ({RUN}) (rankwatch_scalar{{name="{STEPS_PER_EPOCH}"}} > 0)
            """,
        ),
        recorded(_PER_TOKENS, f"1e6 * {per_second} {_TOKENS}"),
        recorded(
            "run:rankwatch_cost_per_million_tokens:marginal",
            f"{_PER_TOKENS} * on ({RUN}) group_left () run:rankwatch_goodput_runtime:ratio",
        ),
    )


def _scaling() -> RecordingRule:
    """A run that states no baseline has none."""
    ranks = f"max by ({RUN}) (rankwatch_run_world_size > 0)"
    alone = f'max by ({RUN}) (rankwatch_scalar{{name="{BASELINE}"}} > 0)'
    return recorded(
        "run:rankwatch_scaling_efficiency:ratio", f"{_TOKENS} / on ({RUN}) {ranks} / on ({RUN}) {alone}"
    )


def _utilisation() -> tuple[RecordingRule, ...]:
    """Against the peak, and as the GPUs themselves report it.

    A run with a GPU whose peak is not known has no MFU: it would be too high. GPUs are averaged by node
    first, so that the join is small.
    """
    return (
        recorded(MFU, "or\n".join(map(_of_peak, DTYPES))),
        recorded(
            GPU_UTILISATION,
            f"""
                avg by ({RUN}) (
                  (max by ({RUN}, node) (rankwatch_run_allocated_gpus) > bool 0)
                  * on (cluster, node) group_left ()
                  avg by (cluster, node) (rankwatch_gpu_utilization_ratio)
                )
            """,
        ),
    )


def _of_peak(dtype: str) -> str:
    flops = f'max by ({RUN}) (rankwatch_scalar{{name="{FLOPS_PER_TOKEN}"}})'
    peak = f'max by (cluster, node, gpu_model) (rankwatch_gpu_peak_flops{{dtype="{dtype}"}})'
    return f"""
        label_replace(
          {_TOKENS}
          * on ({RUN})
          {flops}
          / on ({RUN})
          sum by ({RUN}) ({_ALLOCATED} * on (cluster, node, gpu_model) group_left () {peak})
          unless on ({RUN})
          (rankwatch_run_allocated_gpus unless on (cluster, node, gpu_model) {peak}),
          "dtype", "{dtype}", "", ""
        )
    """


def _budget() -> tuple[RecordingRule, ...]:
    budget = f"max by ({MONEY}) (rankwatch_run_budget)"
    # Each part by all labels: the money of the budget is the only one that it judges.
    to_come = f"{PER_HOUR} / 3600 * on ({RUN}) group_left () {TIME_TO_COMPLETE}"
    return (
        recorded(USED, f"{SPENT} / on ({MONEY}) {budget}"),
        recorded(FORECAST, f"({SPENT} + on ({MONEY}) ({to_come})) / on ({MONEY}) {budget}"),
    )
