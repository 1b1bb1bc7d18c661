"""The place of a box: a living writer keeps it, a dead one gives it up, and another user cannot take it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.writer import Writer
from rankwatch.errors import BlackBoxError
from rankwatch.identity import Identity
from support.processes.users import node_directory

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

START = """
import os, rankwatch
run = rankwatch.start(run="job")
with run.step():
    pass
print(type(run).__name__, run.identity.run, flush=True)
"""
WAIT = "input()\n"
NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as two users")


@contextmanager
def trainer(
    directory: Path, code: str = START + WAIT, *, prefix: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A process that records a step, up to its first line of output."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", code],
        env={**os.environ, "RANKWATCH_DIR": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def pid_of(path: Path) -> int:
    reader = Reader(path)
    try:
        return reader.header.pid
    finally:
        reader.close()


def assert_refused(directory: Path, prefix: tuple[str, ...] = ()) -> None:
    with trainer(directory, START, prefix=prefix) as second:
        stdout, stderr = second.communicate(timeout=600)
    assert (second.returncode, stdout.split()[0]) == (0, "DisabledRun")
    assert stderr.count("\n") == 1
    assert "a process that still runs already records rank 0 of run 'job'" in stderr


def test_living_writer(tmp_path: Path) -> None:
    """A second process with the same rank is refused in one line, and the box of the first stays."""
    path = tmp_path / "job" / "0.blackbox"
    with trainer(tmp_path) as first:
        assert first_line(first) == "Run job"
        assert_refused(tmp_path)
        assert pid_of(path) == first.pid
        assert [each.name for each in tmp_path.rglob("*") if each.is_file() and each.stat().st_size] == [
            "0.blackbox"
        ]


@needs_root
def test_living_writer_in_another_pid_namespace(tmp_path: Path) -> None:
    """Two containers that share the directory: neither sees the process of the other."""
    unshare = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow PID namespaces")
    with trainer(tmp_path, prefix=unshare) as first:
        assert first_line(first) == "Run job"
        assert_refused(tmp_path)
        assert_refused(tmp_path, unshare)


def test_killed_writer(tmp_path: Path) -> None:
    """The box of a killed process gives way, also if another process has its pid by now."""
    path = tmp_path / "job" / "0.blackbox"
    with trainer(tmp_path) as first:
        first_line(first)
    with path.open("r+b") as file:  # the pid of a living process, this one
        at = file.read(4096).index(first.pid.to_bytes(4, "little"))
        file.seek(at)
        file.write(os.getpid().to_bytes(4, "little"))
    with trainer(tmp_path) as second:
        assert first_line(second) == "Run job"
        assert pid_of(path) == second.pid


def test_finished_writer(tmp_path: Path) -> None:
    """A run that has ended gives way while its process lives on, as in a notebook."""
    with trainer(tmp_path, START + "run.finish()\nprint('finished', flush=True)\n" + WAIT) as first:
        first_line(first)
        assert first_line(first) == "finished"
        with trainer(tmp_path) as second:
            assert first_line(second) == "Run job"


def test_many_at_once(tmp_path: Path) -> None:
    """Of processes that want the same place at the same moment, exactly one gets it, also a dead one's."""
    with trainer(tmp_path) as dead:
        first_line(dead)
    code = "import sys, rankwatch\nprint('ready', flush=True)\ninput()\n" + START + "input()\n"
    processes = []
    try:
        for _ in range(6):
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", code],
                    env={**os.environ, "RANKWATCH_DIR": str(tmp_path)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
        for each in processes:
            assert first_line(each) == "ready"
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        kinds = sorted(first_line(each).split()[0] for each in processes)
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert kinds == ["DisabledRun"] * 5 + ["Run"]


@needs_root
def test_directory_of_another_user(tmp_path: Path) -> None:
    """The run is recorded under another name, the same on all ranks of the node, and one line says so."""
    tmp_path.chmod(0o1777)
    (tmp_path / "job").mkdir(mode=0o777)
    os.chown(tmp_path / "job", NOBODY, NOBODY)
    code = START.replace('run="job"', 'run="job", rank={rank}, world_size=2')
    for rank in (0, 1):
        with trainer(tmp_path, code.format(rank=rank)) as process:
            stdout, stderr = process.communicate(timeout=600)
        assert stdout.split() == ["Run", "job-uid0"]
        assert stderr.count("\n") == 1
        assert "the directory of that name is another user's" in stderr
    assert sorted(each.name for each in (tmp_path / "job-uid0").glob("*.blackbox")) == [
        "0.blackbox", "1.blackbox",
    ]  # fmt: skip
    assert list((tmp_path / "job").iterdir()) == []


@needs_root
def test_two_users(node_directory: Path) -> None:
    """Two users who give their runs the same name have two runs."""
    with trainer(node_directory) as first:
        assert first_line(first) == "Run job"
        # only after the imports, because that user need not be able to read this Python
        code = START.replace("run =", f"os.setuid({NOBODY})\nrun =")
        with trainer(node_directory, code) as second:
            assert first_line(second) == f"Run job-uid{NOBODY}"
        assert pid_of(node_directory / "job" / "0.blackbox") == first.pid


@needs_root
@pytest.mark.parametrize("kind", ["link", "file", "open to others"])
def test_name_that_is_no_safe_directory(tmp_path: Path, kind: str) -> None:
    """A link, a file, and a directory into which others can write are left alone too."""
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "job").symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        (tmp_path / "job").write_text("")
    else:
        (tmp_path / "job").mkdir()
        (tmp_path / "job").chmod(0o777)
    with trainer(tmp_path, START) as process:
        stdout, _ = process.communicate(timeout=600)
    assert stdout.split() == ["Run", f"job-uid{os.geteuid()}"]


def test_all_names_taken(tmp_path: Path) -> None:
    """Then the run is not recorded; it never shares a directory with another user."""
    for name in ("r", *(f"r-uid{os.geteuid()}{end}" for end in ("", *(f"-{n}" for n in range(2, 8))))):
        (tmp_path / name).write_text("")
    with pytest.raises(BlackBoxError, match="other users own all of its names"):
        Writer(tmp_path, Identity(run="r"), phases=())
    assert not list(tmp_path.glob(".*"))
