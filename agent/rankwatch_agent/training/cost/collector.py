"""Collector `cost`: prices, what is charged to each run, and what it has spent.

GPUs are charged as allocated, not as used. Money is added as it is spent, at the price of the moment, and
kept across restarts of the agent: a price that changes later does not change it, and no server must keep the
history of a run of months. What no price was known for is not added.
"""

from __future__ import annotations

import logging
import math
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rankwatch_agent.runtime.collector import Collection, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.runtime.reread import Reread
from rankwatch_agent.runtime.state_file import StateFile
from rankwatch_agent.runtime.turns import excess
from rankwatch_agent.training.conditions import RunCondition, RunConditions
from rankwatch_agent.training.cost.price_table import Price, PriceTable, load_price_table

_MOST_RUNS = 2000
"""That are not here any more. Of more, the user with most of them loses the oldest."""
_KEPT_SECONDS = 90 * 86400.0
"""A run that waits for so long to go on is another one."""


class Money(NamedTuple):
    """A kind of money: amounts of different kinds are never added."""

    currency: str
    basis: str


class Charged(NamedTuple):
    """What is charged to a run at one moment."""

    rates: Mapping[Money, float]
    """Money for an hour."""
    since: float
    """Unix time at which its oldest living process here started."""
    owner: int
    """User id of the run's owner."""


class Spending:
    """The sums of all runs.

    directory: where they are kept. Without one they begin anew with the agent.
    save_seconds: between two saves; a crash of the agent costs no more than is added again from the file's
        time on, at the present price.
    """

    def __init__(self, directory: Path | None, save_seconds: float = 30.0) -> None:
        self._spent: dict[str, dict[Money, float]] = {}
        self._until: dict[str, float] = {}
        """Run -> Unix time up to which it is charged."""
        self._owners: dict[str, int | None] = {}
        """Run -> user id; None in a file of an agent that did not write it down."""
        self._rates: Mapping[str, Mapping[Money, float]] = {}
        """Money that is charged to each run for an hour."""
        self._save_seconds = save_seconds
        self._saved = -math.inf
        self._file = StateFile(
            directory, "spending.json", lost="runs are charged from the start of their processes"
        )
        self._file.load(self._load)

    def charge(self, charged: Mapping[str, Charged], moment: float) -> None:
        """Add what was spent since the last time, or since the start of processes that began later."""
        for run, (rates, since, owner) in charged.items():
            self._owners[run] = owner
            spent = self._spent.setdefault(run, {})
            seconds = max(0.0, moment - max(since, self._until.get(run, since)))
            for money, rate in rates.items():
                spent[money] = spent.get(money, 0.0) + rate * seconds / 3600.0
            self._until[run] = moment  # also after a clock was set back
        present = {run: each.rates for run, each in charged.items()}
        if present != self._rates or moment >= self._saved + self._save_seconds or moment < self._saved:
            self._rates = present  # what was spent at an earlier price could not be added again
            self._forget(charged, moment)
            self._save(moment)

    def of(self, run: str) -> Iterator[tuple[Money, float]]:
        """Yield what a run has spent, by kind of money."""
        yield from self._spent.get(run, {}).items()

    def _forget(self, living: Container[str], moment: float) -> None:
        ended = sorted((run for run in self._until if run not in living), key=self._until.__getitem__)
        old = [run for run in ended if self._until[run] < moment - _KEPT_SECONDS]
        for run in {*old, *excess(ended, owner=self._owners.get, most=_MOST_RUNS)}:
            del self._spent[run], self._until[run], self._owners[run]

    def _save(self, moment: float) -> None:
        self._saved = moment
        runs = {
            run: {
                "until": self._until[run],
                "owner": self._owners[run],
                "spent": [[*money, amount] for money, amount in spent.items()],
            }
            for run, spent in self._spent.items()
        }
        self._file.save({"runs": runs})

    def _load(self, document: Any) -> None:
        spent: dict[str, dict[Money, float]] = {}
        until: dict[str, float] = {}
        owners: dict[str, int | None] = {}
        for run, found in document["runs"].items():
            until[run] = float(found["until"])
            owners[run] = None if found.get("owner") is None else int(found["owner"])
            spent[run] = {Money(str(one), str(two)): float(amount) for one, two, amount in found["spent"]}
            if not all(map(math.isfinite, (until[run], *spent[run].values()))):
                raise ValueError("an amount is no number")
        self._until, self._spent, self._owners = until, spent, owners


CPU_MODEL = "cpu"
"""Stands for the model of a GPU where a rank has none: its price is that of a rank."""


class ChargedRank(NamedTuple):
    """A rank whose process lives."""

    run: str
    gpu: str
    """UUID of its GPU or MIG instance; empty for a rank without one."""


class NodeGpu(Protocol):
    """A GPU of this node."""

    @property
    def uuid(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def mig_uuids(self) -> tuple[str, ...]: ...


UNKNOWN_MODEL = "unknown"
"""A GPU that the driver does not list: it has no price."""


def allocate(
    ranks: Iterable[ChargedRank], gpus: Sequence[NodeGpu], *, whole_node: bool
) -> Mapping[str, Mapping[str, float]]:
    """Run -> model -> number of GPUs.

    Several ranks on one GPU pay for it once, and runs that share one divide it by their ranks. A MIG instance
    is an equal part of its GPU. A rank without a GPU pays for itself.
    whole_node: all GPUs of the node are charged to the runs on it, by their ranks on GPUs.
    """
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    on_part: dict[str, Counter[str]] = defaultdict(Counter)
    for run, gpu in ranks:
        if gpu:
            on_part[gpu][run] += 1
        else:
            found[run][CPU_MODEL] += 1.0
    if whole_node and on_part and gpus:
        everybody: Counter[str] = sum(on_part.values(), Counter())
        for each in gpus:
            _divide(found, everybody, each.model, 1.0)
        return found
    by_uuid = {uuid: (each.model, 1.0) for each in gpus for uuid in (each.uuid,)}
    by_uuid |= {uuid: (each.model, 1.0 / len(each.mig_uuids)) for each in gpus for uuid in each.mig_uuids}
    for uuid, runs in on_part.items():
        model, part = by_uuid.get(uuid, (UNKNOWN_MODEL, 1.0))
        _divide(found, runs, model, part)
    return found


def _divide(
    found: Mapping[str, dict[str, float]], ranks_by_run: Mapping[str, int], model: str, amount: float
) -> None:
    total = sum(ranks_by_run.values())
    for run, count in ranks_by_run.items():
        found[run][model] += amount * count / total


logger = logging.getLogger(__name__)


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
                *self._model_series(prices),
                *self._run_series(runs, allocated, prices, table),
                sample("rankwatch_price_table_failures_total", (), self._failures),
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
        """Return the Unix time at which the oldest living process of the run here started."""
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
                yield sample("rankwatch_run_allocated_gpus", (run, model), amount)
                yield sample("rankwatch_run_price_known", (run, model), float(bool(prices[model])))
        for run, condition in runs.items():
            for (currency, basis), amount in self._spending.of(run):
                yield sample("rankwatch_cost_total", (run, currency, basis), amount)
                yield sample("rankwatch_run_spent", (run, currency, basis), amount)
            names = [run, *{each.short_name for each in condition.ranks if each.short_name}]
            budget = table.budget(names)
            if budget is not None:
                yield sample("rankwatch_run_budget", (run, budget.currency, budget.basis), budget.amount)

    def _model_series(self, prices: Mapping[str, Sequence[Price]]) -> Iterator[Series]:
        for model, valid in prices.items():
            for each in valid:
                labels = (model, each.currency, each.basis)
                yield sample("rankwatch_gpu_price_per_hour", labels, each.price_per_hour)
        for model in prices:
            for dtype, peak in self._peaks.get(model, {}).items():
                yield sample("rankwatch_gpu_peak_flops", (model, dtype), peak)


def build_cost(
    config: AgentConfig, *, conditions: RunConditions, gpus: Callable[[], Sequence[NodeGpu]]
) -> CostCollector:
    """Return the collector by the settings. Raises UserError for a price table that cannot be used."""
    return CostCollector(
        conditions=conditions,
        gpus=gpus,
        price_table=config.price_table,
        whole_node=config.cost_charge == "node",
        directory=config.state_path(),
        schedule=config.schedule(CostCollector.name),
    )


def load_peaks() -> dict[str, dict[str, float]]:
    """Return model -> type of numbers -> FLOP/s, as shipped with the agent."""
    text = resources.files("rankwatch_agent.training.cost").joinpath("peak_flops.toml").read_text()
    return {model: entry["peak"] for model, entry in tomllib.loads(text).items()}


def _rates(charged: Mapping[str, float], prices: Mapping[str, Sequence[Price]]) -> dict[Money, float]:
    found: dict[Money, float] = {}
    for model, amount in charged.items():
        for price in prices[model]:
            money = Money(price.currency, price.basis)
            found[money] = found.get(money, 0.0) + amount * price.price_per_hour
    return found
