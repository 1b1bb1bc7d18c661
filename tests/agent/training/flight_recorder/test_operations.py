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
        ("nccl:ALLGATHER_coalesced", "nccl", "all_gather"),
        ("nccl:REDUCE_SCATTER_coalesced", "nccl", "reduce_scatter"),
        ("nccl:allreduce_coalesced", "nccl", "all_reduce"),
        ("nccl2:all_reduce", "nccl2", "all_reduce"),
        ("nccl2:recv 1<-?", "nccl2", "recv"),
        ("c10d:alltoall", "c10d", "all_to_all"),
        ("ncclx:all_to_all_v_single", "ncclx", "all_to_all"),
        ("gloo:all_to_all", "gloo", "all_to_all"),
        ("", "", ""),
        ("odd", "", "odd"),
    ],
)
def test_operation_names(name: str, backend: str, operation: str) -> None:
    """Names are those of the dispatcher's hook: one operation has one label, whatever its source."""
    assert (backend_of(made(name)), operation_of(made(name))) == (backend, operation)


def test_input_bytes() -> None:
    """Bytes are elements times the size of their type. They are summed over all tensors of the input."""
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
    """They are not guessed: types may be unknown, and sizes may be those of no tensor."""
    assert input_bytes(made(input_sizes=sizes, input_dtypes=types)) is None


def test_equal_calls_have_one_signature() -> None:
    """The number of elements counts, not their shape; one operation may have several names."""
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
    """Another operation, size or type has another signature. Each of them is a desync."""
    assert signature(other) != signature(made(input_sizes=[[32]], input_dtypes=["Float"]))


def test_uneven_operations_compare_by_name() -> None:
    """The parts of an all-to-all differ between the ranks by design."""
    one, other = (made("nccl:all_to_all", input_sizes=[[size]], input_dtypes=["Float"]) for size in (1, 2))
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("name", "even", "uneven", "other"),
    [
        (
            "nccl2:all_gather",
            ([[8]], [[8], [8]]),
            [([[8]], [[8], [3]]), ([[3]], [[8], [3]])],
            ([[3]], [[8], [4]]),
        ),
        (
            "nccl2:reduce_scatter",
            ([[8], [8]], [[8]]),
            [([[8], [3]], [[8]]), ([[8], [3]], [[3]])],
            ([[8], [4]], [[3]]),
        ),
    ],
)
def test_uneven_lists(
    name: str, even: tuple[object, object], uneven: list[tuple[object, object]], other: tuple[object, object]
) -> None:
    """Shares of an uneven all_gather or reduce_scatter differ by design, and what is gathered does not."""

    def of(sizes: tuple[object, object]) -> int:
        return signature(made(name, input_sizes=sizes[0], output_sizes=sizes[1], input_dtypes=["Float"]))

    assert of(uneven[0]) == of(uneven[1]) != of(other)
    assert of(even) != of(uneven[0])


def test_signature_is_stable() -> None:
    """Agents of two nodes compare it, so its hash has no random seed."""
    assert signature(made(input_sizes=[[32]], output_sizes=[[32]], input_dtypes=["Float"])) == 2184440343
