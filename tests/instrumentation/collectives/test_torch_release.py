"""The private parts of PyTorch that the hook uses exist in this release, in the expected form."""

from __future__ import annotations

import inspect
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch import compiling
from rankwatch.collectives.call import OPERATIONS, Operator

torch = pytest.importorskip("torch")
c10d = pytest.importorskip("torch._C._distributed_c10d")


PRIVATE = (
    "_C._dispatch_keyset_full_after _C.DispatchKey.BackendSelect _C._distributed_c10d.ProcessGroup.unbox "
    "_C._distributed_c10d.ProcessGroup.group_desc _C._distributed_c10d.Work.unbox "
    "_C._distributed_c10d.Work.get_future _C._distributed_c10d._WorkerServer.shutdown "
    "_ops.OpOverload.redispatch distributed.distributed_c10d._world.pg_map "
    "distributed.distributed_c10d._world.pg_group_ranks ops._c10d_functional.wait_tensor.default"
)


@pytest.mark.parametrize("path", PRIVATE.split())
def test_private_name(path: str) -> None:
    """It exists. Otherwise rankwatch would record no collectives and only log a line."""
    attrgetter(path)(torch)


def test_keys_of_kernel() -> None:
    """A kernel can receive the dispatch keys, which it needs to call the kernel below."""
    assert "with_keyset" in inspect.signature(torch.library.Library.impl).parameters


@pytest.mark.parametrize("name", [each for each in OPERATIONS if hasattr(torch.ops.c10d, each)])
def test_arguments_of_operator(name: str) -> None:
    """Tensors come before the group, and the argument that makes a call asynchronous has a known name."""
    arguments = [each.name for each in getattr(torch.ops.c10d, name).default._schema.arguments]
    operator = Operator(arguments, 1, point_to_point=False)
    assert 0 < operator.group < len(arguments)
    assert {each for each in arguments if "async" in each.lower()} <= {"async_op", "asyncOp"}


def test_skipping_the_compiler() -> None:
    """This release has one of the two known ways to keep a function and its callees from the compiler."""
    frames = torch._C._dynamo.eval_frame
    way = hasattr(frames, "set_code_exec_strategy") and hasattr(frames, "_FrameExecStrategy")
    assert way or (hasattr(frames, "skip_code") and hasattr(frames, "set_eval_frame"))


def test_compiler_of_older_release() -> None:
    """It is off while the function runs and on afterwards, also after an exception."""
    compilers: list[Any] = ["the trainer's"]

    def switch(new: Any) -> Any:
        compilers.append(new)
        return compilers[-2]

    def divide(by: int) -> float:
        assert compilers[-1] is None
        return 1 / by

    older = SimpleNamespace(set_eval_frame=switch, skip_code=lambda code: None)
    around = compiling._with_compiler_off(divide, older)
    assert around(by=2) == 0.5
    assert compilers[-1] == "the trainer's"
    with pytest.raises(ZeroDivisionError):
        around(0)
    assert compilers[-1] == "the trainer's"
