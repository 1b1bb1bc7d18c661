"""Row: what does the run cost, what of it is waste, and does it keep its budget?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import GREEN, ORANGE, RUN, Drawing, Panel, Query

_MONEY = "{{currency}} ({{basis}})"


def cost(config: RuleConfig) -> tuple[Panel, ...]:
    """Rates, sums, units, waste and budget."""
    return _PER_HOUR, _SPENT, _PRICES, _WASTE, _PER_TOKENS, _PER_STEP, _BUDGET


def _of_run(series: str, legend: str) -> Query:
    return Query(expression=f"{series}{{{RUN}}}", legend=legend)


_PER_HOUR = Panel(
    title="Cost per hour",
    description="What is charged to the run, at the prices of the moment. What is allocated costs, used or "
    "not. Empty without a price table.",
    unit="short",
    queries=(_of_run("run:rankwatch_cost_per_hour:sum", f"{{{{run}}}} {_MONEY}"),),
)
_SPENT = Panel(
    title="Spent",
    description="Money since the start of the run, each hour at its own price.",
    unit="short",
    queries=(_of_run("run:rankwatch_spent:sum", f"{{{{run}}}} {_MONEY}"),),
)
_PRICES = Panel(
    title="Price known",
    description="Whether the price table has a valid price for what the run uses. Without one its cost is "
    "not complete: add a price, or one that follows the price that has ended. No alert says so.",
    unit="short",
    drawing=Drawing.NAMED_NUMBER,
    mappings=(("0", "✗ no price", ORANGE), ("1", "✓ known", GREEN)),
    queries=(
        Query(expression=f"min by (gpu_model) (rankwatch_run_price_known{{{RUN}}})", legend="{{gpu_model}}"),
    ),
)
_WASTE = Panel(
    title="Cost per hour by state",
    description="What the states of goodput cost an hour. All but productive is waste, by its cause.",
    unit="short",
    drawing=Drawing.STACKED,
    queries=(_of_run("run_state:rankwatch_cost_per_hour:sum", f"{{{{state}}}} {_MONEY}"),),
)
_PER_TOKENS = Panel(
    title="Cost of a million tokens",
    description="Full, and of productive time alone. The gap is waste. Tokens that several ranks of a "
    "replica see count once.",
    unit="short",
    queries=(
        _of_run("run:rankwatch_cost_per_million_tokens:mean", f"full {_MONEY}"),
        _of_run("run:rankwatch_cost_per_million_tokens:marginal", f"marginal {_MONEY}"),
    ),
)
_PER_STEP = Panel(
    title="Cost of a step and of an epoch",
    description="Pauses between steps included. It rises with waste, and with slower steps: see Badput by "
    "cause. Of an epoch only where the run states steps_per_epoch.",
    unit="short",
    queries=(
        _of_run("run:rankwatch_cost_per_step:mean", f"step of {{{{run}}}} {_MONEY}"),
        _of_run("run:rankwatch_cost_per_epoch:mean", f"epoch of {{{{run}}}} {_MONEY}"),
    ),
)
_BUDGET = Panel(
    title="Budget",
    description="Share of the budget that is spent, and that will be at the last step. A forecast above the "
    "line: RankwatchOverBudget.",
    unit="percentunit",
    threshold=1.0,
    queries=(
        _of_run("run:rankwatch_budget_used:ratio", f"used {_MONEY}"),
        _of_run("run:rankwatch_budget_forecast:ratio", f"forecast {_MONEY}"),
    ),
)
