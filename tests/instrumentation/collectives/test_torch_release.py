"""What the hook looks up in PyTorch's private parts is there, in the form it expects."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.collectives import compiler
from rankwatch.collectives.operators import OPERATIONS, Operator

torch = pytest.importorskip("torch")
c10d = pytest.importorskip("torch._C._distributed_c10d")


@pytest.mark.parametrize(
    "path",
    [
        "_C._dispatch_keyset_full_after",
        "_C.DispatchKey.BackendSelect",
        "_C._distributed_c10d.ProcessGroup.unbox",
        "_C._distributed_c10d.ProcessGroup.group_desc",
        "_C._distributed_c10d.Work.unbox",
        "_C._distributed_c10d.Work.get_future",
        "_C._distributed_c10d._WorkerServer.shutdown",
        "_ops.OpOverload.redispatch",
        "distributed.distributed_c10d._world.pg_map",
        "distributed.distributed_c10d._world.pg_group_ranks",
        "ops._c10d_functional.wait_tensor.default",
    ],
)
def test_a_private_name_is_where_we_look_for_it(path: str) -> None:
    """A release that has moved it would cost the collectives, with one line in the log."""
    found = torch
    for name in path.split("."):
        found = getattr(found, name)


def test_a_kernel_is_given_its_keys() -> None:
    """It hands on below itself with them."""
    assert "with_keyset" in inspect.signature(torch.library.Library.impl).parameters


@pytest.mark.parametrize("name", [each for each in OPERATIONS if hasattr(torch.ops.c10d, each)])
def test_the_arguments_of_an_operator_are_understood(name: str) -> None:
    """Tensors before the group; and every argument that says whether the caller goes on by a known name."""
    arguments = [each.name for each in getattr(torch.ops.c10d, name).default._schema.arguments]
    operator = Operator(arguments, 1, point_to_point=False)
    assert 0 < operator.group < len(arguments)
    assert {each for each in arguments if "async" in each.lower()} <= {"async_op", "asyncOp"}


def test_the_compiler_can_be_told_to_leave_a_function_alone() -> None:
    """And all that it calls: in one of the two ways that releases know."""
    frames = torch._C._dynamo.eval_frame
    way = hasattr(frames, "set_code_exec_strategy") and hasattr(frames, "_FrameExecStrategy")
    assert way or (hasattr(frames, "skip_code") and hasattr(frames, "set_eval_frame"))


def test_the_compiler_of_an_older_release_is_off_while_ours_runs_and_on_again_after() -> None:
    """After an exception too."""
    compilers: list[Any] = ["the trainer's"]

    def switch(new: Any) -> Any:
        compilers.append(new)
        return compilers[-2]

    def divide(by: int) -> float:
        assert compilers[-1] is None
        return 1 / by

    older = SimpleNamespace(set_eval_frame=switch, skip_code=lambda code: None)
    uncompiled = compiler._with_compiler_off(divide, older)
    assert uncompiled(by=2) == 0.5
    assert compilers[-1] == "the trainer's"
    with pytest.raises(ZeroDivisionError):
        uncompiled(0)
    assert compilers[-1] == "the trainer's"
