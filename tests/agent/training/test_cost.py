"""The price table, and the collector of costs: what is charged, at which price, and what restarts keep."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rankwatch.conventions.states import RankState
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.sources.gpu.inventory import GpuIdentity
from rankwatch_agent.training.conditions import RankCondition, RunConditions
from rankwatch_agent.training.cost import collector as cost
from rankwatch_agent.training.cost.collector import ChargedRank, CostCollector, allocate
from rankwatch_agent.training.cost.price_table import PriceTable, load_price_table

H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"


def gpu(uuid: str, model: str, mig_uuids: tuple[str, ...] = ()) -> GpuIdentity:
    return GpuIdentity(uuid=uuid, pci_bus_id=uuid, index=0, minor_number=0, model=model, mig_uuids=mig_uuids)


GPUS = [*(gpu(f"GPU-{number}", H100) for number in range(4)), gpu("GPU-l4", L4, ("MIG-0", "MIG-1"))]
BOOT = 1_700_000_000.0


def price(model: str, amount: float, currency: str = "EUR", more: str = "") -> str:
    fields = f'gpu_model="{model}"\nprice_per_hour={amount}\ncurrency="{currency}"\nbasis="list"'
    return f"[[price]]\n{fields}\n{more}\n"


def rank(
    number: int, gpu: str = "", *, started: float = 0.0, ended: bool = False, owner: int = 0
) -> RankCondition:
    return RankCondition(
        rank=number,
        path=Path(f"{number}.blackbox"),
        state=RankState.LOST if ended else RankState.RUNNING,
        last_progress=started,
        timeout=None,
        open_phase=None,
        pid=1,
        started=started,
        gpu=gpu,
        owner=owner,
        short_name="llama",
    )


class Node:
    """A node with a clock that the test sets."""

    def __init__(self, directory: Path, table: str | None = None, *, whole_node: bool = False) -> None:
        self.path = directory / "prices.toml"
        self.moment = 0.0
        self.conditions = RunConditions()
        if table is not None:
            self.path.write_text(table)
        self._directory, self._whole_node, self._priced = directory / "cost", whole_node, table is not None
        self.restart()

    def restart(self) -> None:
        self.collector = CostCollector(
            conditions=self.conditions,
            gpus=lambda: GPUS,
            price_table=self.path if self._priced else None,
            whole_node=self._whole_node,
            directory=self._directory,
            schedule=Schedule(5.0, 5.0),
            monotonic=lambda: self.moment,
            wall=lambda: BOOT + self.moment,
        )

    def at(self, moment: float, **runs: list[RankCondition]) -> dict[tuple[str, ...], float]:
        self.moment = moment
        self.conditions.update(runs, moment)
        found = self.collector.collect().series
        return {(each.metric.name.removeprefix("rankwatch_"), *each.labels): each.value for each in found}


def spent(found: Mapping[tuple[str, ...], float], currency: str = "EUR") -> float:
    """What the run `r` has spent."""
    return found["run_spent", "r", currency, "list"]


def test_spent(tmp_path: Path) -> None:
    """From the start of the processes on; ranks on one GPU pay for it once; a GPU is charged, used or not."""
    node = Node(tmp_path, price(H100, 2.0) + price(L4, 0.5))
    ranks = [rank(0, "GPU-0"), rank(1, "GPU-1"), rank(2, "GPU-1"), rank(3, "MIG-0")]
    found = node.at(3600.0, r=ranks)
    assert found["cost_total", "r", "EUR", "list"] == spent(found) == pytest.approx(2 * 2.0 + 0.25)
    assert [found["run_allocated_gpus", "r", model] for model in (H100, L4)] == [2, 0.5]
    assert found["gpu_price_per_hour", H100, "EUR", "list"] == 2.0
    assert found["run_price_known", "r", H100] == 1
    assert found["gpu_peak_flops", H100, "bf16"] == 989.5e12
    assert spent(node.at(7200.0, r=ranks)) == pytest.approx(8.5)


def test_no_price(tmp_path: Path) -> None:
    """Without a price there is no cost, and a series says so; never a cost of 0."""
    found = Node(tmp_path, price(L4, 1.0)).at(3600.0, r=[rank(0, "GPU-0")])
    assert found["run_price_known", "r", H100] == 0
    assert not [name for name, *_ in found if name in ("cost_total", "run_spent", "gpu_price_per_hour")]


def test_two_currencies(tmp_path: Path) -> None:
    """They are never added."""
    node = Node(tmp_path, price(H100, 2.0) + price(L4, 1.0, "USD"))
    found = node.at(3600.0, r=[rank(0, "GPU-0"), rank(1, "GPU-l4")])
    assert (spent(found), spent(found, "USD")) == pytest.approx((2.0, 1.0))


def test_price_changes(tmp_path: Path) -> None:
    """Each hour keeps the price of its day."""
    changes = "valid_{}=2023-11-14T23:13:20\n"  # an hour after BOOT
    table = price(H100, 2.0, more=changes.format("until")) + price(H100, 10.0, more=changes.format("from"))
    node = Node(tmp_path, table)
    for moment in (3599.0, 3600.0, 7200.0):
        found = node.at(moment, r=[rank(0, "GPU-0")])
    assert spent(found) == pytest.approx(2.0 + 10.0, rel=0.01)
    assert found["gpu_price_per_hour", H100, "EUR", "list"] == 10.0


def test_restart_of_the_agent(tmp_path: Path) -> None:
    """What was spent stays, and the time without an agent is charged."""
    node = Node(tmp_path, price("cpu", 1.0))
    node.at(3600.0, r=[rank(0), rank(1)])
    node.restart()
    assert spent(node.at(5400.0, r=[rank(0), rank(1)])) == pytest.approx(3.0)


def test_between_attempts(tmp_path: Path) -> None:
    """Without a process nothing is charged; the next attempt goes on from the same sum."""
    node = Node(tmp_path, price("cpu", 1.0))
    node.at(3600.0, r=[rank(0)])
    assert spent(node.at(7200.0, r=[rank(0, ended=True)])) == pytest.approx(1.0)
    assert spent(node.at(9000.0, r=[rank(0, started=8100.0)])) == pytest.approx(1.25)


def test_runs_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one user cost no other one's run, between two attempts, what it has spent."""
    monkeypatch.setattr(cost, "_MOST_RUNS", 3)
    node = Node(tmp_path, price("cpu", 1.0))
    node.at(3600.0, r=[rank(0, owner=1)])
    for n in range(6):
        node.at(3601.0 + n, **{f"fake{n}": [rank(0, owner=2, started=3600.0)]})
        node.restart()
    found = node.at(7200.0, r=[rank(0, owner=1, started=7200.0)])
    assert found["run_spent", "r", "EUR", "list"] == pytest.approx(1.0)


def test_clock_set_back(tmp_path: Path) -> None:
    """Nothing is charged twice, and nothing is taken back."""
    node = Node(tmp_path, price("cpu", 1.0))
    found = [spent(node.at(moment, r=[rank(0)])) for moment in (3600.0, 1800.0, 5400.0)]
    assert found == pytest.approx([1.0, 1.0, 2.0])


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"runs": {"r": {"until": "x"}}}', "[" * 100_000, '{"runs": 1}']
)
def test_broken_sums(tmp_path: Path, content: str) -> None:
    """They are left out: the run is charged from the start of its processes."""
    (tmp_path / "cost").mkdir()
    (tmp_path / "cost" / "spending.json").write_text(content)
    assert spent(Node(tmp_path, price("cpu", 1.0)).at(3600.0, r=[rank(0)])) == pytest.approx(1.0)


def test_broken_reload(tmp_path: Path) -> None:
    """A changed table that cannot be used is counted, and the one before it stays."""
    node = Node(tmp_path, price("cpu", 1.0))
    node.at(1.0, r=[rank(0)])
    node.path.write_text("[[price]]")
    os.utime(node.path, (1, 1))
    for moment in (2.0, 3.0):
        found = node.at(moment, r=[rank(0)])
        assert found["price_table_failures_total",] == 1
        assert found["gpu_price_per_hour", "cpu", "EUR", "list"] == 1.0


def test_broken_at_the_start(tmp_path: Path) -> None:
    """Then the agent does not start."""
    with pytest.raises(UserError, match="it has no gpu_model"):
        Node(tmp_path, "[[price]]")


def test_no_table(tmp_path: Path) -> None:
    """The state is visible all the same; without runs there is nothing to say."""
    node = Node(tmp_path)
    with pytest.raises(NotApplicable):
        node.at(1.0)
    assert node.at(2.0, r=[rank(0)])["run_price_known", "r", "cpu"] == 0


def test_budget(tmp_path: Path) -> None:
    """By the short name of the run."""
    table = '[[budget]]\nrun="lla*"\namount=50\ncurrency="EUR"\nbasis="list"\n'
    assert Node(tmp_path, table).at(1.0, r=[rank(0)])["run_budget", "r", "EUR", "list"] == 50


def test_shared_gpu() -> None:
    """Two runs on one GPU divide it by their ranks; a GPU that nobody lists has no model."""
    ranks = [("a", "GPU-0"), ("a", "GPU-0"), ("b", "GPU-0"), ("b", "?")]
    assert allocate([ChargedRank(*each) for each in ranks], GPUS, whole_node=False) == {
        "a": {H100: pytest.approx(2 / 3)},
        "b": {H100: pytest.approx(1 / 3), "unknown": 1.0},
    }


def test_whole_node() -> None:
    """All GPUs of the node, also those that no rank uses."""
    found = allocate([ChargedRank("a", "GPU-0")], GPUS, whole_node=True)
    assert found["a"] == {H100: 4.0, L4: 1.0}


GOOD = "".join(
    (
        price("NVIDIA H100*", 3.5, "USD"),
        price(H100, 2, "USD", 'valid_from=2026-01-01\nvalid_until=2026-07-01\nsource="price list"'),
        price(H100, 1.5, "EUR", "valid_from=2026-07-01T00:00:00+02:00").replace("list", "contracted"),
        '[[budget]]\nrun = "llama-*"\namount = 1000\ncurrency = "EUR"\nbasis = "contracted"\n',
    )
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def load(tmp_path: Path, text: str | bytes) -> PriceTable:
    path = tmp_path / "prices.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_price_table(path)


def prices(table: PriceTable, model: str, moment: str) -> list[tuple[float, str, str]]:
    return [(each.price_per_hour, each.currency, each.basis) for each in table.of(model, at(moment))]


def test_price_of_the_moment(tmp_path: Path) -> None:
    """A plain name wins over a pattern, each basis for itself; the end of a price does not belong to it."""
    table = load(tmp_path, GOOD)
    assert prices(table, H100, "2026-03-01") == [(2, "USD", "list")]
    assert prices(table, H100, "2026-06-30T21:59:59") == [(2, "USD", "list")]
    assert prices(table, H100, "2026-06-30T22:00:00") == [(2, "USD", "list"), (1.5, "EUR", "contracted")]
    assert prices(table, H100, "2026-07-01") == [(3.5, "USD", "list"), (1.5, "EUR", "contracted")]
    assert prices(table, "NVIDIA H100 PCIe", "2026-03-01") == [(3.5, "USD", "list")]
    assert prices(table, "NVIDIA A100", "2026-03-01") == []


def test_budget_of_a_table(tmp_path: Path) -> None:
    """By any name of the run."""
    table = load(tmp_path, GOOD)
    found = table.budget(["1234", "llama-8b"])
    assert found is not None
    assert found.amount == 1000
    assert table.budget(["1234"]) is None


PRICE = price("x", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PRICE + PRICE, "prices 1 and 2 are both valid at one time for 'x' with basis list"),
        (
            f"{PRICE}valid_until=2026-02-02\n{PRICE.replace('EUR', 'USD')}valid_from=2026-02-01\n",
            "prices 1 and 2 are both valid",
        ),
        (PRICE.replace("=1\n", "=-1\n"), "price_per_hour = -1 in price 1 of"),
        (PRICE.replace("=1\n", "=0\n"), "expected a number above 0"),
        (PRICE.replace("=1\n", "=nan\n"), "expected a number above 0"),
        (PRICE.replace("=1\n", "=true\n"), "expected a number above 0"),
        (PRICE.replace('currency="EUR"\n', ""), "it has no currency, expected a currency such as EUR"),
        (PRICE.replace("EUR", "euro"), "expected a currency such as EUR"),
        (PRICE.replace("list", "guess"), "expected one of list, contracted, amortised"),
        (PRICE + "colour=1\n", "could not use 'colour' in price 1 of"),
        (PRICE + 'valid_from="soon"\n', "expected a date or time"),
        (PRICE + "valid_from=2026-13-01\n", "could not parse price_table"),
        (PRICE + "valid_from=2026-02-01\nvalid_until=2026-02-01\n", "valid_until is not after valid_from"),
        ("[prices]\n", "expected entries [[price]] and [[budget]]"),
        ("price=1\n", "expected entries [[price]]"),
        ('[[budget]]\nrun="x"\n', "it has no amount"),
        (b"\xff\xfe", "could not parse price_table"),
        (b"#" * (1 << 20) + b"##", "larger than 1 MiB"),
    ],
)
def test_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    """One sentence names file, entry, field and what was expected."""
    with pytest.raises(UserError) as raised:
        load(tmp_path, text)
    assert words in str(raised.value)
    assert "prices.toml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_neighbours_do_not_overlap(tmp_path: Path) -> None:
    """One price may begin in the moment in which another ends."""
    load(tmp_path, f"{PRICE}valid_until=2026-02-01\n{PRICE}valid_from=2026-02-01\n")


def test_missing(tmp_path: Path) -> None:
    """A file that is not there."""
    with pytest.raises(UserError, match=r"could not read price_table .*No such file"):
        load_price_table(tmp_path / "none")
