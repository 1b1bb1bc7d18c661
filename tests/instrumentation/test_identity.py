"""Who this process is, from arguments, torchrun, SLURM, or nothing."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from rankwatch.errors import IdentityError
from rankwatch.identity import find_identity


def test_a_process_with_no_distributed_job_is_rank_0_of_1() -> None:
    """Without any variable there is one rank, and the run id tells script and process."""
    identity = find_identity({})
    assert (identity.rank, identity.world_size, identity.local_rank) == (0, 1, 0)
    assert identity.run
    assert identity.host


def test_torchrun_gives_rank_and_run() -> None:
    """The rendezvous id is the run id."""
    identity = find_identity(
        {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "llama-7b"}
    )
    assert (identity.run, identity.rank, identity.world_size, identity.local_rank) == ("llama-7b", 5, 8, 1)


def test_torchrun_without_an_id_falls_back_on_the_rendezvous_address() -> None:
    """torchrun says 'none'; all ranks still come to the same run id."""
    env = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    first = find_identity({**env, "RANK": "0"})
    second = find_identity({**env, "RANK": "1"})
    assert first.run == second.run
    assert "node1-29500" in first.run


def test_a_module_run_by_name_gives_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m trainer` is `trainer`, not `__main__`."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("trainer.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert find_identity({}).run.startswith("trainer-")


def test_slurm_gives_rank_and_run() -> None:
    """SLURM's variables serve where torchrun's are not set."""
    identity = find_identity(
        {"SLURM_JOB_ID": "77", "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3"}
    )
    assert (identity.run, identity.rank, identity.world_size, identity.local_rank) == ("slurm-77", 3, 4, 3)


def test_explicit_arguments_win_over_the_environment() -> None:
    """What the caller says is taken."""
    identity = find_identity({"RANK": "1", "WORLD_SIZE": "2", "RANKWATCH_RUN": "env"}, run="mine", rank=0)
    assert (identity.run, identity.rank, identity.world_size) == ("mine", 0, 2)


def test_the_variable_of_rankwatch_wins_over_torchrun() -> None:
    """RANKWATCH_RUN names the run."""
    assert find_identity({"RANKWATCH_RUN": "mine", "TORCHELASTIC_RUN_ID": "theirs"}).run == "mine"


@pytest.mark.parametrize("run", ["a/b\n'\"", "../../etc", "x" * 500, "\N{SNOWMAN}run"])
def test_a_run_id_becomes_one_safe_path_component(run: str) -> None:
    """Whatever a run is called, its directory lies below the base directory."""
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
def test_what_does_not_fit_together_is_refused(arguments: dict[str, object]) -> None:
    """An identity that cannot be is told, not recorded."""
    with pytest.raises(IdentityError):
        find_identity({}, **arguments)  # type: ignore[arg-type]


def test_an_environment_that_is_no_number_is_refused_by_name() -> None:
    """The message names variable and value."""
    with pytest.raises(IdentityError, match="RANK is 'abc'"):
        find_identity({"RANK": "abc"})
