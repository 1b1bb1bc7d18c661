"""What stands in the way of a black box never stands in the way of training."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch

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


def loop(directory: Path | str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "RANKWATCH_DIR": str(directory), **variables}
    return subprocess.run([sys.executable, "-c", LOOP], env=env, capture_output=True, text=True, check=False)


def test_a_missing_directory_is_made(tmp_path: Path) -> None:
    """Nobody has to prepare the node."""
    done = loop(tmp_path / "a" / "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Run\n", "")
    assert list((tmp_path / "a" / "b").glob("r/0.blackbox"))


def test_a_directory_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    """The loop runs to its end without a record."""
    (tmp_path / "file").write_text("")
    done = loop(tmp_path / "file" / "below")
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert done.stderr.count("rankwatch records nothing") == 1
    assert "Traceback" not in done.stderr


def test_a_read_only_directory_is_told_once() -> None:
    """/proc takes no files, not even from root."""
    done = loop("/proc/rankwatch")
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert done.stderr.count("rankwatch records nothing") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_is_told_once_and_never_a_bus_error(tmp_path: Path) -> None:
    """The pages are reserved before the file gets its name."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        done = loop(small)
        left = list(small.rglob("*blackbox*"))
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert "No space left on device" in done.stderr
    assert left == []


def test_one_variable_turns_everything_off(tmp_path: Path) -> None:
    """No file, no word."""
    done = loop(tmp_path, RANKWATCH_DISABLE="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "DisabledRun\n", "")
    assert list(tmp_path.iterdir()) == []


def test_an_odd_environment_is_told_and_training_goes_on(tmp_path: Path) -> None:
    """A launcher of one's own may set RANK to anything."""
    done = loop(tmp_path, RANK="zero")
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert "RANK is 'zero'" in done.stderr


def test_arguments_that_cannot_be_right_raise(tmp_path: Path) -> None:
    """What the caller wrote wrong is told to the caller."""
    with pytest.raises(rankwatch.UsageError, match="rank 4 does not fit"):
        rankwatch.start(directory=tmp_path, run="r", rank=4, world_size=2)
    with pytest.raises(rankwatch.UsageError, match="expected names"):
        rankwatch.start(directory=tmp_path, run="r", phases="teacher")
    with pytest.raises(rankwatch.UsageError, match="capacity is 1"):
        rankwatch.start(directory=tmp_path, run="r", capacity=1)
    with pytest.raises(rankwatch.UsageError, match="60 phases"):
        rankwatch.start(directory=tmp_path, run="r", phases=[f"p{each}" for each in range(60)])


def test_importing_takes_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """Every module that `import rankwatch` and a recorded loop load is Python's own or ours."""
    code = (
        LOOP + "import sys\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'rankwatch', '__main__', '__mp_main__'}))\n"
    )
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    bare = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {_source()!r}\n{code}"]
    done = subprocess.run(bare, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def _source() -> list[str]:
    return [str(Path(rankwatch.__file__).parents[1])]


def test_an_error_inside_is_told_once_however_often_it_happens(
    run: rankwatch.Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted each time."""
    with caplog.at_level(logging.WARNING, "rankwatch"):
        for _ in range(50):
            run.scalar("loss", "high")
    assert len(caplog.records) == 1


@pytest.mark.parametrize("world", [2**33, 2**70])
def test_numbers_that_fit_no_box_are_told_and_training_goes_on(tmp_path: Path, world: int) -> None:
    """Whatever the environment holds, `start` returns."""
    done = loop(tmp_path, RANK="3", WORLD_SIZE=str(world))
    assert (done.returncode, done.stdout) == (0, "DisabledRun\n")
    assert done.stderr.count("rankwatch records nothing") == 1
