"""Collector `cost`: prices, what is charged to each run, and what it has spent."""

from __future__ import annotations

import logging
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.training.conditions import RunCondition, RunConditions
from rankwatch_agent.training.cost.allocation import ChargedRank, NodeGpu, allocate
from rankwatch_agent.training.cost.price_table import Price, PriceTable, load_price_table
from rankwatch_agent.training.cost.spending import Charged, Money, Spending

logger = logging.getLogger(__name__)

_PRICE = metric("rankwatch_gpu_price_per_hour")
_ALLOCATED = metric("rankwatch_run_allocated_gpus")
_KNOWN = metric("rankwatch_run_price_known")
_COST = metric("rankwatch_cost_total")
_SPENT = metric("rankwatch_run_spent")
_BUDGET = metric("rankwatch_run_budget")
_PEAK = metric("rankwatch_gpu_peak_flops")
_FAILURES = metric("rankwatch_price_table_failures_total")


class CostCollector:
    """Charges the runs of this node.

    conditions: the ranks, as the collector `ranks` has seen them last.
    gpus: the GPUs of the node.
    price_table: the file; None for no prices, with which only the allocation is exported.
    whole_node: charge all GPUs of the node to the runs on it.
    directory: where the sums are kept; None keeps none.
    monotonic, wall: the clocks, in seconds.

    Raises UserError for a price table that cannot be used.
    """

    name = "cost"

    def __init__(
        self,
        *,
        conditions: RunConditions,
        gpus: Callable[[], Sequence[NodeGpu]],
        price_table: Path | None,
        whole_node: bool,
        directory: Path | None,
        schedule: Schedule,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._conditions = conditions
        self._gpus = gpus
        self._peaks = load_peaks()
        self._failures = 0
        self._loaded = False
        self._path = price_table
        self._table = None if price_table is None else Reread([price_table], self._load)
        self._loaded = True
        self._whole_node = whole_node
        self._spending = Spending(directory)
        self._monotonic, self._wall = monotonic, wall

    def collect(self) -> Collection:
        """Charge the time since the last run. Raises NotApplicable without runs and without prices."""
        table = PriceTable() if self._table is None else self._table.current()
        runs = self._conditions.runs  # another thread may replace it meanwhile
        ranks = [
            ChargedRank(run, rank.gpu)
            for run, condition in runs.items()
            for rank in condition.ranks
            if not rank.ended
        ]
        if not ranks and self._table is None:
            raise NotApplicable("no run is on this node, and there is no price_table")
        moment = self._wall()
        allocated = allocate(ranks, self._gpus(), whole_node=self._whole_node)
        models = sorted({model for charged in allocated.values() for model in charged})
        prices = {model: table.of(model, moment) for model in models}
        self._spending.charge(
            {
                run: Charged(_rates(each, prices), self._since(runs[run]), runs[run].ranks[0].owner)
                for run, each in allocated.items()
            },
            moment,
        )
        return Collection(
            (
                *_price_series(prices),
                *self._peak_series(models),
                *self._run_series(runs, allocated, prices, table),
                self._failed(),
            )
        )

    def _load(self) -> PriceTable:
        assert self._path is not None
        try:
            return load_price_table(self._path)
        except UserError:
            self._failures += self._loaded  # the first time, the agent does not start
            raise

    def _since(self, run: RunCondition) -> float:
        """Unix time at which the oldest living process of the run here started."""
        offset = self._wall() - self._monotonic()
        started = [each.started for each in run.ranks if not each.ended and each.started is not None]
        return min(started, default=self._monotonic()) + offset

    def _run_series(
        self,
        runs: Mapping[str, RunCondition],
        allocated: Mapping[str, Mapping[str, float]],
        prices: Mapping[str, Sequence[Price]],
        table: PriceTable,
    ) -> Iterator[Series]:
        for run, charged in allocated.items():
            for model, amount in charged.items():
                yield Series(_ALLOCATED, (run, model), amount)
                yield Series(_KNOWN, (run, model), float(bool(prices[model])))
        for run, condition in runs.items():
            for (currency, basis), amount in self._spending.of(run):
                yield Series(_COST, (run, currency, basis), amount)
                yield Series(_SPENT, (run, currency, basis), amount)
            names = [run, *{each.short_name for each in condition.ranks if each.short_name}]
            budget = table.budget(names)
            if budget is not None:
                yield Series(_BUDGET, (run, budget.currency, budget.basis), budget.amount)

    def _peak_series(self, models: Sequence[str]) -> Iterator[Series]:
        for model in models:
            for dtype, peak in self._peaks.get(model, {}).items():
                yield Series(_PEAK, (model, dtype), peak)

    def _failed(self) -> Series:
        return Series(_FAILURES, (), self._failures)


def build_cost(
    config: AgentConfig, *, conditions: RunConditions, gpus: Callable[[], Sequence[NodeGpu]]
) -> CostCollector:
    """The collector by the settings. Raises UserError for a price table that cannot be used."""
    return CostCollector(
        conditions=conditions,
        gpus=gpus,
        price_table=config.price_table,
        whole_node=config.cost_charge == "node",
        directory=config.state_path(),
        schedule=config.schedule(CostCollector.name),
    )


def load_peaks() -> dict[str, dict[str, float]]:
    """Model -> type of numbers -> FLOP/s, as shipped with the agent."""
    text = resources.files("rankwatch_agent.training.cost").joinpath("peak_flops.toml").read_text()
    return {model: entry["peak"] for model, entry in tomllib.loads(text).items()}


def _rates(charged: Mapping[str, float], prices: Mapping[str, Sequence[Price]]) -> dict[Money, float]:
    found: dict[Money, float] = {}
    for model, amount in charged.items():
        for price in prices[model]:
            money = Money(price.currency, price.basis)
            found[money] = found.get(money, 0.0) + amount * price.price_per_hour
    return found


def _price_series(prices: Mapping[str, Sequence[Price]]) -> Iterator[Series]:
    for model, valid in prices.items():
        for each in valid:
            yield Series(_PRICE, (model, each.currency, each.basis), each.price_per_hour)
