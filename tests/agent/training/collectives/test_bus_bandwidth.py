"""The formulas of nccl-tests, on literals."""

from __future__ import annotations

import pytest

from rankwatch_agent.training.collectives.rendezvous import (
    BUS_FACTORS,
    bus_factor,
    size_class,
    total_bytes,
)


@pytest.mark.parametrize(
    ("operation", "of_two", "of_eight"),
    [
        ("all_reduce", 1.0, 1.75),
        ("all_gather", 0.5, 0.875),
        ("reduce_scatter", 0.5, 0.875),
        ("all_to_all", 0.5, 0.875),
        ("gather", 0.5, 0.875),
        ("scatter", 0.5, 0.875),
        ("broadcast", 1.0, 1.0),
        ("reduce", 1.0, 1.0),
    ],
)
def test_factors_are_those_of_nccl_tests(operation: str, of_two: float, of_eight: float) -> None:
    """doc/PERFORMANCE.md, and src/gather.cu and src/scatter.cu for the two it leaves out."""
    assert (bus_factor(operation, 2), bus_factor(operation, 8)) == (of_two, of_eight)


def test_every_formula_is_tested() -> None:
    """None is added without its literal above."""
    (mark,) = test_factors_are_those_of_nccl_tests.pytestmark  # type: ignore[attr-defined]
    assert {each[0] for each in mark.args[1]} == set(BUS_FACTORS)


def test_what_is_not_known_has_no_factor() -> None:
    """An operation without a formula, and a group whose size is not known."""
    assert bus_factor("barrier", 8) is None
    assert bus_factor("all_reduce", 0) is None


def test_a_rank_alone_moves_nothing() -> None:
    """An all-reduce of one rank stays where it is."""
    assert bus_factor("all_reduce", 1) == 0.0


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("all_reduce", 1000),
        ("reduce_scatter", 1000),
        ("all_to_all", 1000),
        ("broadcast", 1000),
        ("all_gather", 4000),
        ("gather", 4000),
    ],
)
def test_the_total_size_is_that_of_all_ranks(operation: str, expected: int) -> None:
    """A rank's input to a gather is its share; elsewhere it is the whole."""
    assert total_bytes(operation, 1000, 4) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "small"), (65_535, "small"), (65_536, "medium"), (1_048_575, "medium"), (1_048_576, "large")],
)
def test_size_classes_begin_at_64_kib_and_1_mib(size: int, expected: str) -> None:
    """The bound itself belongs to the larger class."""
    assert size_class(size) == expected
