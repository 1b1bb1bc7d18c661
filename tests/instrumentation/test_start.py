"""Starting a run: whatever prevents the black box never prevents training."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import rankwatch
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity
from support.processes.python import python
from support.training.blackbox import box, header, now

pytestmark = pytest.mark.process

LOOP = """
import rankwatch
run = rankwatch.start(run="r", target_steps=3)
with run:
    for batch in run.batches(range(3)):
        with run.step():
            with run.phase("forward"):
                pass
            run.scalar("loss", 1.0)
            run.work(samples=1)
        with run.checkpoint("save") as operation:
            with operation.stage("write"):
                pass
            operation.bytes = 1
    with run.evaluation():
        pass
    run.resumed(3)
print(type(run).__name__)
"""


def loop(directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return python(LOOP, directory=directory, **variables)


def test_missing_directory(tmp_path: Path) -> None:
    """It is created, so that nobody has to prepare the node."""
    done = loop(tmp_path / "a" / "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Run\n", "")
    assert list((tmp_path / "a" / "b").glob("r/0.blackbox"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_full_disk(tmp_path: Path) -> None:
    """It is logged and never a SIGBUS, because the pages are reserved before the file gets its name."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        done = loop(small)
        with pytest.raises(BlackBoxError, match="No space left on device"):  # it has become full since
            Writer(small, Identity(run="r"), phases=())
        left = list(small.rglob("*blackbox*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert "has 0.0625 MiB" in done.stderr
    assert left == []


def test_disabled(tmp_path: Path) -> None:
    """RANKWATCH_DISABLE leaves no file and no output."""
    done = loop(tmp_path, RANKWATCH_DISABLE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "DisabledRun\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("below", "variables", "said"),
    [
        ("file/below", {}, ""),
        ("/proc/rankwatch", {}, ""),  # which accepts no files, not even from root
        ("", {"RANK": "zero"}, "RANK is 'zero'"),  # a custom launcher may set it to anything
        # Otherwise all processes would be rank 0.
        (
            "",
            {"WORLD_SIZE": "4", "LOCAL_RANK": "1"},
            "WORLD_SIZE is 4, but nothing gives this process its rank",
        ),
        ("", {"RANK": "3", "WORLD_SIZE": str(2**33)}, ""),
        ("", {"RANK": "3", "WORLD_SIZE": str(2**70)}, ""),
    ],
)
def test_nothing_is_recorded(tmp_path: Path, below: str, variables: dict[str, str], said: str) -> None:
    """One line says why, and the loop runs to its end."""
    (tmp_path / "file").write_text("")
    done = loop(tmp_path / below, **variables)
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert done.stderr.count("\n") == done.stderr.count("rankwatch records nothing") == 1
    assert said in done.stderr
    assert not list(tmp_path.rglob("*.blackbox"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 4, "world_size": 2}, "rank 4 does not fit"),
        ({"phases": "teacher"}, "expected names"),
        ({"capacity": 1}, "capacity is 1"),
        ({"phases": [f"p{each}" for each in range(60)]}, "60 phases"),
        ({"checkpoint_interval_seconds": 0}, "checkpoint_interval_seconds is 0"),
    ],
)
def test_invalid_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    """They raise, because the caller made the mistake."""
    with pytest.raises(rankwatch.UsageError, match=message):
        rankwatch.start(directory=tmp_path, run="r", **arguments)


def test_standard_library_only(tmp_path: Path) -> None:
    """`import rankwatch` and a recorded loop load only modules of Python and of rankwatch."""
    code = (
        LOOP + "import sys\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'rankwatch', '__main__', '__mp_main__'}))\n"
    )
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    source = [str(Path(rankwatch.__file__).parents[1])]
    bare = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {source!r}\n{code}"]
    done = subprocess.run(bare, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_repeated_error(run: rankwatch.Run, caplog: pytest.LogCaptureFixture) -> None:
    """An error that repeats is logged once."""
    with caplog.at_level(logging.WARNING, "rankwatch"):
        for _ in range(50):
            run.scalar("loss", "high")
    assert len(caplog.records) == 1


def _declared(directory: Path) -> tuple[str, str, float | None]:
    found = header(box(directory))
    return found.run_class, found.contact, found.checkpoint_interval_seconds


def test_identified_by_two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training thread may publish the box while the thread that looks finds out the same. That one opens
    no box of the run any more: closing its own would drop the lock, and the rank would be lost."""
    published = threading.Event()

    def identify(given: object, env: object, *, last: bool, ask: bool) -> Identity | None:
        if ask:
            published.wait()
        return Identity(run="r") if last or ask else None

    monkeypatch.setattr("rankwatch.starting.identify", identify)
    with rankwatch.start(directory=tmp_path) as run, run.step():
        (looking,) = (each for each in threading.enumerate() if each.name == "rankwatch-start")
        published.set()
        looking.join()
        code = "import pathlib, sys; from rankwatch.blackbox.reader import Reader as R\n"
        code += "print(R(pathlib.Path(sys.argv[1])).writer_alive())"
        assert python(code, str(box(tmp_path)), check=True).stdout == "True\n"


CLOSED_STREAMS = """
import contextlib, os, sys
import rankwatch
run = rankwatch.start(run="r", directory=sys.argv[1])
with run.step(), contextlib.suppress(OSError):
    os.write(2, b"a warning of a library")
log = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
os.dup2(log, 1)
run.finish()
os.write(1, b"the training goes on")
"""


def test_closed_standard_streams(tmp_path: Path) -> None:
    """No file of ours takes their numbers: what is written there is not in the box, and the end of the run
    does not close what the script has put there."""
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", CLOSED_STREAMS]
    subprocess.run([*command, str(tmp_path), str(tmp_path / "log")], check=True)
    assert (tmp_path / "log").read_text() == "the training goes on"
    assert now(box(tmp_path)).ended_by == "finished"


def test_what_a_run_declares(tmp_path: Path) -> None:
    """The header holds the class of the run, its contact and the checkpoint interval, for the alerts."""
    done = loop(
        tmp_path,
        RANKWATCH_RUN_CLASS="big runs",
        RANKWATCH_CONTACT="me@example.com",
        RANKWATCH_CHECKPOINT_INTERVAL_SECONDS="1800",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert _declared(tmp_path) == ("big_runs", "me@example.com", 1800.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("CHECKPOINT_INTERVAL_SECONDS", text) for text in ("often", "-1", "nan", "inf")),
        ("CONTACT", "me@example.com, you@example.com"),
        ("", ""),
    ],
)
def test_wrong_declaration(tmp_path: Path, name: str, text: str) -> None:
    """It is ignored with one line, and the run is recorded as one that declares nothing."""
    done = loop(tmp_path, **({f"RANKWATCH_{name}": text} if name else {}))
    assert (done.returncode, done.stdout) == (0, "Run\n")
    assert done.stderr.count(f"RANKWATCH_{name} is") == bool(name)
    assert _declared(tmp_path) == ("", "", None)
