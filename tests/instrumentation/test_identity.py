"""The identity of a process, how a run is called, and the ids of traces and spans."""

from __future__ import annotations

import itertools
import os
import sys
import time
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from rankwatch.errors import IdentityError
from rankwatch.identification import Given, identify
from rankwatch.identity import (
    Identity,
    as_contact,
    rank_step_span,
    run_trace,
    safe_run,
    span,
    span_text,
    step_trace,
    trace_text,
)
from support.processes.python import python


def find(env: dict[str, str], **given: object) -> Identity:
    """The identity that a process has at its first step, without torch.distributed."""
    identity = identify(Given(**given), env, last=True, ask=False)  # type: ignore[arg-type]
    assert identity is not None
    return identity


def test_defaults() -> None:
    """Without a distributed job the process is rank 0 of 1, in a run of its own."""
    identity = find({})
    assert (identity.rank, identity.world_size, identity.local_rank) == (0, 1, 0)
    assert str(os.getpid()) in identity.run, "two processes of one script on one node are two runs"
    assert identity.host


def test_torchrun() -> None:
    """The rendezvous id is the run id."""
    identity = find({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "llama-7b"})
    assert (identity.run, identity.rank, identity.world_size, identity.local_rank) == ("llama-7b", 5, 8, 1)


TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "node1", "MASTER_PORT": "29500",
    "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
}  # fmt: skip


@pytest.mark.process
def test_torchrun_without_id() -> None:
    """All ranks of one torchrun have the same name, and another torchrun at the same address has another."""
    code = (
        "import sys; sys.argv = ['train.py']\n"
        "from rankwatch.identification import Given, identify\n"
        f"print(identify(Given(), {{**{TORCHRUN!r}, 'RANK': '%s'}}, last=False, ask=False).run)\n"
    )
    launcher = (
        "import subprocess, sys\n"
        f"for rank in '01': subprocess.run([sys.executable, '-c', {code!r} % rank], check=True)\n"
    )
    names = []
    for _ in range(2):
        names.append(python(launcher, check=True).stdout.split())
        time.sleep(1.0)  # the name holds whole seconds
    assert [len(set(each)) for each in names] == [1, 1]
    assert names[0] != names[1]
    assert names[0][0].startswith("train-node1-29500-2")


def test_module_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m trainer` gives `trainer`, not `__main__`."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("trainer.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    identity = find({})
    assert identity.run.startswith("trainer-")
    assert identity.short_name == "trainer"


def test_name_of_the_job() -> None:
    """The short name is the job's, unless SLURM has made it up. It is for people, and not unique."""
    assert find({"SLURM_JOB_NAME": "pretrain", "SLURM_JOB_ID": "7"}).short_name == "pretrain"
    assert find({"SLURM_JOB_NAME": "interactive", "SLURM_JOB_ID": "7"}).short_name != "interactive"


def test_arguments_over_environment() -> None:
    identity = find({"RANK": "1", "WORLD_SIZE": "2", "RANKWATCH_RUN": "env"}, run="mine", rank=0)
    assert (identity.run, identity.rank, identity.world_size) == ("mine", 0, 2)


def test_world_size_without_a_rank() -> None:
    """All processes would be rank 0. The error says what is missing."""
    with pytest.raises(IdentityError, match="world_size is 4, but nothing"):
        find({}, world_size=4)


@pytest.mark.parametrize("run", ["a/b\n'\"", "../../etc", "x" * 500, "\N{SNOWMAN}run", "-rf"])
def test_safe_run_id(run: str) -> None:
    """Any run id becomes a single path component, so that its directory stays below the base directory."""
    safe = safe_run(run)
    assert "/" not in safe
    assert not safe.startswith((".", "-"))
    assert 0 < len(safe.encode()) <= 100
    assert safe_run(safe) == safe


def test_changed_run_ids_stay_different() -> None:
    """Two ids that differ only in what a directory cannot hold, or after its longest name, are two runs."""
    ids = ["team/a", "team_a", "team a", "x" * 200, "x" * 201]
    assert len({safe_run(each) for each in ids}) == len(ids)


@pytest.mark.parametrize(
    "arguments",
    [
        {"rank": 4, "world_size": 4},
        {"rank": -1, "world_size": 4},
        {"world_size": 0},
        {"local_rank": -1},
        {"coordinates": {"dp": (2, 2)}},
        {"run": "..."},
    ],
)
def test_impossible_identity(arguments: dict[str, object]) -> None:
    with pytest.raises(IdentityError):
        Given(**arguments).check()  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["#my-team", "#ml.ops_2", "me@example.com", "a.b+c@x-y.example.org"])
def test_contact(text: str) -> None:
    assert as_contact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "#", "#Team", "#a b", "team", "@here", "me@example", "me@example.com,you@example.com",
        "Me <me@example.com>", "me@example.com\n", "{{ .x }}@example.com", "me@exämple.com",
        "-oProxy@example.com", f"#{'x' * 64}", f"{'x' * 53}@example.com",
    ],
)  # fmt: skip
def test_wrong_contact(text: str) -> None:
    """It becomes a label and the address of a mail: one plain address or channel, or nothing."""
    assert as_contact(text) == ""


@pytest.mark.process
def test_same_in_every_process() -> None:
    """Nodes agree without talking: the id depends on nothing but the fields."""
    code = "from rankwatch.identity import *; print(step_trace('c', 'run', 2, 100), run_trace('c', 'run'))"
    expected = f"{step_trace('c', 'run', 2, 100)} {run_trace('c', 'run')}\n"
    assert python(code, check=True).stdout == expected


def test_different_things_differ() -> None:
    """Fields are not simply joined: ("a", "bc") and ("ab", "c") are two runs."""
    traces = [run_trace("a", "bc"), run_trace("ab", "c"), run_trace("", "abc")]
    traces += [step_trace("a", "b", *each) for each in itertools.product(range(4), range(400))]
    spans = [rank_step_span(traces[0], rank) for rank in range(400)] + [span(traces[0], "rank", 1, "forward")]
    assert len(set(traces)) == len(traces)
    assert len(set(spans)) == len(spans)
    assert step_trace("a", "b", 1, 11) != step_trace("a", "b", 11, 1)


def test_text_of_trace_ids() -> None:
    """As W3C trace context has them."""
    assert trace_text(1) == "0" * 31 + "1"
    assert span_text(255) == "0" * 14 + "ff"
    assert len(trace_text(run_trace("", "run"))) == 32
    assert len(span_text(span(1, "x"))) == 16
