"""What an entry of a flight recorder is."""

from __future__ import annotations

import pytest

from rankwatch_agent.training.flight_recorder.operations import (
    backend_of,
    input_bytes,
    operation_of,
    signature,
)
from rankwatch_agent.training.flight_recorder.parse import Entry


def made(name: str = "nccl:all_reduce", **fields: object) -> Entry:
    return Entry(record_id=0, profiling_name=name, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "backend", "operation"),
    [
        ("nccl:all_reduce", "nccl", "all_reduce"),
        ("nccl:_all_gather_base", "nccl", "all_gather"),
        ("nccl:_reduce_scatter_base", "nccl", "reduce_scatter"),
        ("nccl:all_reduce_barrier", "nccl", "barrier"),
        ("nccl:send 0->3", "nccl", "send"),
        ("gloo:all_to_all", "gloo", "all_to_all"),
        ("", "", ""),
        ("odd", "", "odd"),
    ],
)
def test_operation_names(name: str, backend: str, operation: str) -> None:
    """Names are those of the dispatcher's hook: one operation has one label, whatever its source."""
    assert (backend_of(made(name)), operation_of(made(name))) == (backend, operation)


def test_input_bytes() -> None:
    """Bytes are elements times the size of their type.

    They are summed over all tensors of the input.
    """
    sizes, types = [[2, 3], [5], []], ["Float", "BFloat16", "Float8_e4m3fn"]
    assert input_bytes(made(input_sizes=sizes, input_dtypes=types)) == 2 * 3 * 4 + 5 * 2 + 1


@pytest.mark.parametrize(
    ("sizes", "types"),
    [
        (None, ["Float"]),
        ([[1]], None),
        ([[1]], ["Unheard"]),
        ([[1], [1]], ["Float"]),
        ([[-1]], ["Float"]),
        ([[1 << 60]], ["Float"]),
        ([[1] * 65], ["Float"]),
    ],
)
def test_unknown_input_bytes(sizes: list[list[int]] | None, types: list[str] | None) -> None:
    """Bytes that cannot be known are not guessed.

    Types may be unknown, and sizes may be those of no tensor.
    """
    assert input_bytes(made(input_sizes=sizes, input_dtypes=types)) is None


def test_equal_calls_have_one_signature() -> None:
    """Ranks that call the same collective have one signature.

    The number of elements counts, not their shape, and the same operation has several names.
    """
    one = made(input_sizes=[[4, 8]], input_dtypes=["Float"])
    other = made(input_sizes=[[32]], input_dtypes=["Float"])
    assert signature(one) == signature(other)
    assert 0 <= signature(one) < 1 << 32


@pytest.mark.parametrize(
    "other",
    [
        made("nccl:broadcast", input_sizes=[[32]], input_dtypes=["Float"]),
        made(input_sizes=[[33]], input_dtypes=["Float"]),
        made(input_sizes=[[32]], input_dtypes=["Half"]),
    ],
)
def test_other_calls_have_other_signatures(other: Entry) -> None:
    """Another operation, size or type has another signature.

    Each of them is a desync.
    """
    assert signature(other) != signature(made(input_sizes=[[32]], input_dtypes=["Float"]))


def test_uneven_operations_compare_by_name() -> None:
    """Uneven operations are compared by their name alone.

    The parts of an all-to-all differ between the ranks by design.
    """
    one, other = (made("nccl:all_to_all", input_sizes=[[size]], input_dtypes=["Float"]) for size in (1, 2))
    assert signature(one) == signature(other)


def test_signature_is_stable() -> None:
    """The signature is the same in every process.

    Agents of two nodes compare it, so its hash has no random seed.
    """
    assert signature(made(input_sizes=[[32]], output_sizes=[[32]], input_dtypes=["Float"])) == 2184440343
