"""ECC, row remapping, and what the driver wants done."""

from __future__ import annotations

import pytest

from support.gpu.reading import Node, node_values, values_of


def test_ecc_errors_are_told_by_kind_and_scope(node: Node) -> None:
    """Where ECC is on."""
    assert {key[1:]: value for key, value in node.values(3).items() if key[0] == "ecc_errors_total"} == {
        ("corrected", "volatile"): 13.0,
        ("corrected", "aggregate"): 103.0,
        ("uncorrected", "volatile"): 1003.0,
        ("uncorrected", "aggregate"): 2003.0,
    }


def test_ecc_errors_have_no_series_where_ecc_is_off(node: Node) -> None:
    """0 errors would say that memory is checked."""
    node.driver.set(3, "ecc.mode", 0)
    assert not [key for key in node.values(3) if key[0] == "ecc_errors_total"]


def test_remapped_rows_are_told(node: Node) -> None:
    """With their kind, and whether a reset is due or the GPU must go."""
    node.driver.set(2, "fields.144", 1)
    node.driver.set(2, "fields.145", 1)
    assert (
        node.values(2).items()
        >= {
            ("remapped_rows", "corrected"): 22.0,
            ("remapped_rows", "uncorrected"): 32.0,
            ("row_remap_pending",): 1.0,
            ("row_remap_failed",): 1.0,
        }.items()
    )


def action(node: Node) -> list[tuple[str, ...]]:
    return [key for key in node.values(0) if key[0] == "recovery_action"]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "none"),
        (1, "gpu_reset"),
        (2, "node_reboot"),
        (3, "drain_p2p"),
        (4, "drain_and_reset"),
        (5, "recover_imex_domain"),
    ],
)
def test_the_action_is_told_by_name(node: Node, number: int, name: str) -> None:
    """Only the present one has a series."""
    node.driver.set(0, "fields.230", number)
    assert action(node) == [("recovery_action", name)]


def test_an_action_without_a_name_is_rejected(node: Node) -> None:
    """It is neither none nor a reset."""
    node.driver.set(0, "fields.230", 99)
    reading = node.read()
    assert not [key for key in values_of(reading.gpus[0]) if key[0] == "recovery_action"]
    assert node_values(reading)["readings_rejected_total", "recovery_action"] == 1.0


@pytest.mark.parametrize(
    ("reset", "drain", "name"), [(0, 0, "none"), (1, 0, "gpu_reset"), (0, 1, "drain_and_reset")]
)
def test_an_older_driver_tells_it_by_two_flags(node: Node, reset: int, drain: int, name: str) -> None:
    """Fields 226 and 227, where 230 is not known."""
    node.driver.unsupport(230)
    node.driver.set(0, "fields.226", reset)
    node.driver.set(0, "fields.227", drain)
    assert action(node) == [("recovery_action", name)]
