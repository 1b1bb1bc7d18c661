"""A step's phases and collectives as pieces that follow one another."""

from __future__ import annotations

import pytest

from rankwatch.members import members_text
from rankwatch_diagnosis.run.operation_table import Piece, lay_out
from rankwatch_diagnosis.run.snapshots import parse_members


def told(pieces: list[Piece]) -> list[tuple[str, float, float]]:
    return [(each.operation, round(each.start, 6), round(each.seconds, 6)) for each in pieces]


def test_what_no_phase_claims_is_a_piece_of_its_own() -> None:
    """Before, between and after phases; below 50 microseconds it is a pause."""
    phases = [(1.0, 2.0, "forward"), (2.00002, 3.0, "backward")]
    assert told(lay_out(0.5, 3.5, phases, [], {})) == [
        ("other", 0.5, 0.5),
        ("forward", 1.0, 1.0),
        ("backward", 2.00002, 0.99998),
        ("other", 3.0, 0.5),
    ]


def test_a_blocking_collective_is_taken_out_of_its_phase_and_follows_it() -> None:
    """As tensor parallelism has them inside of forward."""
    calls = [(1.2, 1.5, True, "all_reduce", "tp")]
    assert told(lay_out(1.0, 2.0, [(1.0, 2.0, "forward")], calls, {})) == [
        ("forward", 1.0, 0.7),
        ("all_reduce", 1.7, 0.3),
    ]


def test_asynchronous_buckets_block_from_the_last_enqueue_to_the_last_end() -> None:
    """What runs under the backward pass before that is hidden."""
    calls = [
        (1.1, 1.6, False, "all_reduce", "dp"),
        (1.5, 1.9, False, "all_reduce", "dp"),
    ]
    assert told(lay_out(1.0, 2.0, [(1.0, 2.0, "backward")], calls, {})) == [
        ("backward", 1.0, 0.6),
        ("all_reduce", 1.6, 0.4),
    ]


def test_a_phase_inside_another_is_taken_out_of_it() -> None:
    """Both are pieces, and together as long as the outer one."""
    phases = [(1.0, 2.0, "forward"), (1.2, 1.5, "data_wait")]
    pieces = lay_out(1.0, 2.0, phases, [], {})
    assert {each.operation: pytest.approx(each.seconds) for each in pieces} == {
        "forward": 0.7,
        "data_wait": 0.3,
    }


def test_times_of_the_gpu_replace_those_of_the_host() -> None:
    """Own time first, then what follows the last collective."""
    phases = [(1.0, 1.01, "forward"), (1.01, 1.02, "backward")]
    device = {"forward": [(0.3, 0.3)], "backward": [(0.5, 0.4)]}
    assert told(lay_out(1.0, 1.02, phases, [], device)) == [
        ("forward", 1.0, 0.3),
        ("backward", 1.3, 0.4),
        ("communication", 1.7, 0.1),
    ]


@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2, 3), (1, 3, 5), (0, 1, 4, 9), tuple(range(3, 4000, 8))])
def test_members_are_read_back_from_their_short_form(ranks: tuple[int, ...]) -> None:
    """The very ranks that were written."""
    assert parse_members(members_text(ranks), len(ranks)) == ranks


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("0-3", 5), ("3-1", 2), ("0-9999999", 3), ("1,1", 2), ("0,2,5,9..ab12cd34", 9), ("x", 1)],
)
def test_members_that_are_cut_or_do_not_fit_are_not_guessed(text: str, size: int) -> None:
    """A box is untrusted."""
    assert parse_members(text, size) is None
