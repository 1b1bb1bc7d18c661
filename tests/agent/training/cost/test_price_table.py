"""The price table: what it says, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.price_table import PriceTable, load_price_table

H100 = "NVIDIA H100 80GB HBM3"
GOOD = """
[[price]]
gpu_model = "NVIDIA H100*"
price_per_hour = 3.5
currency = "USD"
basis = "list"

[[price]]
gpu_model = "NVIDIA H100 80GB HBM3"
price_per_hour = 2
currency = "USD"
basis = "list"
valid_from = 2026-01-01
valid_until = 2026-07-01
source = "price list"

[[price]]
gpu_model = "NVIDIA H100 80GB HBM3"
price_per_hour = 1.5
currency = "EUR"
basis = "contracted"
valid_from = 2026-07-01T00:00:00+02:00

[[budget]]
run = "llama-*"
amount = 1000
currency = "EUR"
basis = "contracted"
"""


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


def test_budget(tmp_path: Path) -> None:
    """By any name of the run."""
    table = load(tmp_path, GOOD)
    found = table.budget(["1234", "llama-8b"])
    assert found is not None
    assert found.amount == 1000
    assert table.budget(["1234"]) is None


PRICE = '[[price]]\ngpu_model="x"\nprice_per_hour=1\ncurrency="EUR"\nbasis="list"\n'


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
