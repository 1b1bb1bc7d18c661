"""The identity of a process, from arguments, torchrun, SLURM or defaults."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from rankwatch.errors import IdentityError
from rankwatch.identity import find_identity


def test_defaults() -> None:
    """Without a distributed job the process is rank 0 of 1, and run id and host are not empty."""
    identity = find_identity({})
    assert (identity.rank, identity.world_size, identity.local_rank) == (0, 1, 0)
    assert identity.run
    assert identity.host


def test_torchrun() -> None:
    """The rendezvous id is the run id."""
    identity = find_identity(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "llama-7b"}
    )
    assert (identity.run, identity.rank, identity.world_size, identity.local_rank) == ("llama-7b", 5, 8, 1)


def test_torchrun_without_id() -> None:
    """The run id comes from the rendezvous address, so all ranks still have the same one."""
    env = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    first = find_identity({**env, "RANK": "0"})
    second = find_identity({**env, "RANK": "1"})
    assert first.run == second.run
    assert "node1-29500" in first.run


def test_module_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m trainer` gives `trainer`, not `__main__`."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("trainer.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert find_identity({}).run.startswith("trainer-")


def test_slurm() -> None:
    """SLURM's variables count if torchrun's are not set."""
    identity = find_identity(
        {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3"}
    )
    assert (identity.run, identity.rank, identity.world_size, identity.local_rank) == ("slurm-77", 3, 4, 3)


def test_arguments_over_environment() -> None:
    identity = find_identity({"RANK": "1", "WORLD_SIZE": "2", "RANKWATCH_RUN": "env"}, run="mine", rank=0)
    assert (identity.run, identity.rank, identity.world_size) == ("mine", 0, 2)


def test_own_variable_over_torchrun() -> None:
    assert find_identity({"RANKWATCH_RUN": "mine", "TORCHELASTIC_RUN_ID": "theirs"}).run == "mine"


@pytest.mark.parametrize("run", ["a/b\n'\"", "../../etc", "x" * 500, "\N{SNOWMAN}run"])
def test_safe_run_id(run: str) -> None:
    """Any run id becomes a single path component, so that its directory stays below the base directory."""
    safe = find_identity({}, run=run).run
    assert "/" not in safe
    assert not safe.startswith(".")
    assert 0 < len(safe.encode()) <= 100


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 4, "world_size": 4},
        {"rank": -1, "world_size": 4},
        {"world_size": 0},
        {"local_rank": -1},
        {"coordinates": {"dp": (2, 2)}},
        {"run": "\N{SNOWMAN}".join(["..."])},
    ],
)
def test_impossible_identity(arguments: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        find_identity({}, **arguments)  # type: ignore[arg-type]


def test_environment_that_is_no_number() -> None:
    """The error names the variable and its value."""
    with pytest.raises(IdentityError, match="RANK is 'abc'"):
        find_identity({"RANK": "abc"})
