"""The indicators of what the time and the money of a run go to."""

from __future__ import annotations

from rankwatch_alerts.catalogue.sli import Sli, sli
from rankwatch_alerts.rules import Alert

GOODPUT: tuple[Sli, ...] = (
    sli(
        "goodput",
        "Which share of the time makes progress that lasts?",
        "run:rankwatch_goodput_scheduling:ratio",
        "run:rankwatch_goodput_runtime:ratio",
        "run:rankwatch_goodput_ettr:ratio",
        no_alert="its causes have alerts of their own, and a ratio over an hour shows none of them in time",
    ),
    sli(
        "badput",
        "What does the rest of the time go to?",
        "rankwatch_goodput_seconds_total",
        "run_state:rankwatch_badput:share",
        no_alert="each cause has an alert of its own",
    ),
    sli(
        "checkpoint verification",
        "Is what was saved still what was written?",
        "rankwatch_checkpoint_damaged_step",
        alerts=(Alert.CHECKPOINT_DAMAGED,),
    ),
    sli(
        "verified checkpoints",
        "Up to which step has a checkpoint been read and found good?",
        "rankwatch_checkpoint_verified_step",
        "rankwatch_checkpoint_verified_timestamp_seconds",
        no_alert="what is not good has an alert, and a run whose last good checkpoint is old has another",
    ),
    sli(
        "checkpoint interval",
        "Would another interval between checkpoints cost less?",
        "run:rankwatch_checkpoint_interval_advice_seconds:best",
        "run:rankwatch_checkpoint_interval_advice:gain",
        no_alert="advice for the next start of the run: nothing is broken",
    ),
)
GOODPUT += (
    sli(
        "utilisation",
        "Which share of its peak does the hardware compute for the model?",
        "run:rankwatch_model_flops_utilisation:ratio",
        no_alert="what is good differs between models; the panel shows the run's own past",
    ),
    sli(
        "scaling efficiency",
        "Which share of what one rank alone makes does each rank of the run make?",
        "run:rankwatch_scaling_efficiency:ratio",
        no_alert="it falls with the number of ranks; stragglers and slow networks have alerts of their own",
    ),
)
COSTS: tuple[Sli, ...] = (
    sli(
        "cost",
        "What does the run cost an hour, and what has it spent?",
        "run:rankwatch_cost_per_hour:sum",
        "run:rankwatch_spent:sum",
        "rankwatch_cost_total",
        no_alert="money alone is no fault; the budget of the run judges it",
    ),
    sli(
        "unit cost",
        "What do a step, an epoch and a million tokens cost?",
        "run:rankwatch_cost_per_step:mean",
        "run:rankwatch_cost_per_epoch:mean",
        "run:rankwatch_cost_per_million_tokens:mean",
        no_alert="what is good differs between runs; the panel shows the run's own past",
    ),
    sli(
        "waste",
        "What do the causes of lost time cost?",
        "run_state:rankwatch_cost_per_hour:sum",
        no_alert="each cause has an alert of its own",
    ),
    sli(
        "budget",
        "Will the run end within its budget?",
        "run:rankwatch_budget_used:ratio",
        "run:rankwatch_budget_forecast:ratio",
        alerts=(Alert.FORECAST_OVER_BUDGET,),
    ),
    sli(
        "prices",
        "Is there a price for everything that runs use?",
        "rankwatch_run_price_known",
        alerts=(Alert.PRICE_UNKNOWN,),
    ),
)
