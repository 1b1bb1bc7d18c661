"""Recorded series of cost."""

from __future__ import annotations

from rankwatch.conventions.declaration import recorded
from rankwatch.conventions.labels import Label

_RUN = (Label.CLUSTER, Label.RUN)
_MONEY = (*_RUN, Label.CURRENCY, Label.BASIS)

RECORDED_COST = (
    recorded(
        "run:rankwatch_cost_per_hour:sum",
        _MONEY,
        "Money that the run costs an hour: what is charged to it on all nodes, times the prices.",
    ),
    recorded("run:rankwatch_spent:sum", _MONEY, "Money that the run has spent on all nodes since its start."),
    recorded(
        "run_state:rankwatch_cost_per_hour:sum",
        (*_MONEY, Label.STATE),
        "Money an hour that goes to each state of goodput, by its share of the allocated time.",
    ),
    recorded(
        "run:rankwatch_steps:rate",
        _RUN,
        "Steps per second of the run, pauses included: of the rank that completes most.",
    ),
    recorded(
        "run:rankwatch_tokens:rate",
        _RUN,
        "Tokens per second of the run. Ranks of one replica see the same ones, which count once.",
    ),
    recorded("run:rankwatch_cost_per_step:mean", _MONEY, "Money that a step costs, pauses included."),
    recorded(
        "run:rankwatch_cost_per_epoch:mean",
        _MONEY,
        "The same of an epoch, where the run states how many steps it has.",
    ),
    recorded("run:rankwatch_cost_per_million_tokens:mean", _MONEY, "Money that a million tokens cost."),
    recorded(
        "run:rankwatch_cost_per_million_tokens:marginal",
        _MONEY,
        "The same of productive time alone: the rest is waste.",
    ),
    recorded("run:rankwatch_budget_used:ratio", _MONEY, "Money spent over the budget of the run."),
    recorded(
        "run:rankwatch_budget_forecast:ratio",
        _MONEY,
        "Money that the run will have spent at its last step, at its present pace and cost, over its budget.",
    ),
)
