"""The newest lines of a rank: kept in a file that survives the process, and never in the way of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from rankwatch.errors import BlackBoxError
from rankwatch.logs import lines
from rankwatch.logs.lines import Line, LineWriter, Source, read_lines_at
from rankwatch.untrusted.folders import Folder
from support.processes.python import python

pytestmark = pytest.mark.process

START = "import logging, os, sys, threading, rankwatch\nrun = rankwatch.start(run='job')\n"


def ran(directory: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process that runs `code` as a rank."""
    return python(START + code, directory=directory, **{"RANKWATCH_LOG_LINES": "1", **variables})


def kept(directory: Path, suffix: str = lines.SUFFIX) -> list[Line]:
    return read_lines_at(directory / "job" / f"0{suffix}")


def texts(directory: Path) -> list[str]:
    return [line.text for line in kept(directory)]


def test_log_and_output(tmp_path: Path) -> None:
    """Records of loggers, with severity and step, and whole lines of both streams, in order, each once."""
    done = ran(
        tmp_path,
        "logging.basicConfig(level='INFO')\n"
        "with run.step(7): logging.getLogger('train').warning('loss %s', 2.5)\n"
        "print('a', 'b'); print('to stderr', file=sys.stderr); print('no end', end='')\n",
    )
    assert (done.stdout, done.stderr) == ("a b\nno end", "WARNING:train:loss 2.5\nto stderr\n")
    found = [(line.text, line.source, line.severity, line.step) for line in kept(tmp_path)]
    assert found == [
        ("train: loss 2.5", Source.LOG, 13, 7),
        ("a b", Source.STDOUT, 0, 7),
        ("to stderr", Source.STDERR, 0, 7),
    ]


def test_logging_stays_as_it_is(tmp_path: Path) -> None:
    """The root logger has no handler of ours: basicConfig works later, and its absence shows as always."""
    done = ran(
        tmp_path,
        "logging.warning('before'); assert len(logging.root.handlers) == 1\n"
        "logging.root.handlers.clear(); logging.getLogger('x').warning('last resort')\n"
        "logging.basicConfig(format='mine: %(message)s'); logging.warning('after')\n"
        "quiet = logging.getLogger('quiet'); quiet.propagate = False\n"
        "quiet.addHandler(logging.NullHandler())\n"
        "quiet.error('does not propagate'); quiet.debug('too fine')\n",
    )
    assert done.stderr == "WARNING:root:before\nlast resort\nmine: after\n"
    assert texts(tmp_path) == [
        "root: before", "x: last resort", "root: after", "quiet: does not propagate",
    ]  # fmt: skip


def test_uncaught_exception(tmp_path: Path) -> None:
    """The traceback that ends a rank is among its lines, also where the run has recorded its end before."""
    done = ran(tmp_path, "with run:\n    raise ValueError('bad batch')\n")
    assert done.returncode == 1
    assert texts(tmp_path)[0] == "Traceback (most recent call last):"
    assert texts(tmp_path)[-1] == "ValueError: bad batch"


def test_kill(tmp_path: Path) -> None:
    """What was written before SIGKILL is there afterwards."""
    code = "print('last words')\nos.kill(os.getpid(), 9)\n"
    assert ran(tmp_path, code).returncode == -signal.SIGKILL
    assert texts(tmp_path) == ["last words"]


def test_newest_lines(tmp_path: Path) -> None:
    """A loop that prints for ever keeps a file of one size, with the newest 200 lines in their order."""
    ran(tmp_path, "for number in range(10_000): print(number)\n")
    assert texts(tmp_path) == [str(number) for number in range(9_800, 10_000)]
    assert (tmp_path / "job" / "0.lines").stat().st_size == lines.FILE_BYTES


def test_long_lines_and_bars(tmp_path: Path) -> None:
    """A long line is cut, a progress bar shows as it stood last, and broken text is kept readable."""
    ran(
        tmp_path,
        "print('x' * 5_000_000)\nprint('ä' * 800)\n"
        "for share in range(1000): sys.stdout.write(f'\\r{share} %')\n"
        "sys.stdout.write('\\rdone\\r\\n')\nsys.stdout.reconfigure(errors='replace')\nprint('\\ud800')\n",
    )
    long, umlauts, bar, broken = texts(tmp_path)
    assert long == "x" * lines.LONGEST_BYTES
    assert umlauts == "ä" * (lines.LONGEST_BYTES // 2)
    assert (bar, broken) == ("done", "?")


def test_pieces_of_lines(tmp_path: Path) -> None:
    """A line may come in many writes, many lines in one, and both at once. A line may be too long."""
    ran(
        tmp_path,
        "write = sys.stdout.write\n"
        "print('step', 1, 2.5, sep=' ', end='\\n'); print(); print('a\\nb\\r\\nc\\rd')\n"
        "for _ in range(300): write('12345678')\nwrite('\\nbegun ')\n"
        "write('here\\n\\nnext '); write('x' * 2000); write('\\rover '); write('it\\nrest\\n')\n",
    )
    assert texts(tmp_path) == [
        "step 1 2.5", "a", "b", "d", "12345678" * (lines.LONGEST_BYTES // 8), "begun here", "over it", "rest",
    ]  # fmt: skip


def test_output_of_handlers(tmp_path: Path) -> None:
    """What a handler prints is the record once more, and is not kept twice; other threads' output is kept."""
    ran(
        tmp_path,
        "inside, printed = threading.Event(), threading.Event()\n"
        "class Slow(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        print('by the handler'); inside.set(); printed.wait(30)\n"
        "def other():\n    inside.wait(30); print('by the other'); printed.set()\n"
        "log = logging.getLogger('slow'); log.addHandler(Slow())\n"
        "thread = threading.Thread(target=other); thread.start(); log.warning('record'); thread.join()\n"
        "print('after')\n",
    )
    assert texts(tmp_path) == ["by the other", "slow: record", "after"]


def test_threads_and_forks(tmp_path: Path) -> None:
    """Threads write side by side. A forked child is not the rank, and leaves no line."""
    ran(
        tmp_path,
        "def say(number):\n    for _ in range(10): logging.warning('thread %d', number)\n"
        "threads = [threading.Thread(target=say, args=(n,)) for n in range(8)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]\n"
        "if not os.fork():\n    print('child', flush=True); os._exit(0)\n"
        "os.wait()\n",
    )
    assert Counter(texts(tmp_path)) == {f"root: thread {number}": 10 for number in range(8)}


def test_next_attempt(tmp_path: Path) -> None:
    """A process that takes the rank over keeps the lines of the one before under another name."""
    ran(tmp_path, "print('first')\nwith run.step(): pass\n")
    ran(tmp_path, "print('second')\n")
    assert texts(tmp_path) == ["second"]
    assert [line.text for line in kept(tmp_path, lines.PREVIOUS_SUFFIX)] == ["first"]


def test_end_of_the_interpreter(tmp_path: Path) -> None:
    """What is printed and logged while modules are taken apart goes on, kept or not."""
    done = ran(
        tmp_path,
        "class Late:\n"
        "    def __init__(self): self.print, self.log = print, logging.getLogger('late').warning\n"
        "    def __del__(self): self.print('printed late'); self.log('logged late')\n"
        "import rankwatch.logs.capture as module\nmodule.kept_alive = Late()\nsys.late = Late()\n",
    )
    assert done.returncode == 0
    assert "printed late" in done.stdout
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("value", ["0", "no", ""])
def test_turned_off(tmp_path: Path, value: str) -> None:
    """Then nothing is kept and nothing is wrapped."""
    code = (
        "assert 'rankwatch' not in repr(sys.stdout.write)\nassert not hasattr(sys.stdout.write, '__code__')\n"
    )
    assert ran(tmp_path, code, RANKWATCH_LOG_LINES=value).returncode == 0
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["0.blackbox"]


def test_permissions(tmp_path: Path) -> None:
    """Lines may hold secrets: who may read them is what the umask of the process says."""
    for umask, mode in ((0o022, 0o444), (0o077, 0o400)):
        directory = tmp_path / f"{umask:o}"
        python(f"import os\nos.umask({umask})\n{START}", directory=directory, RANKWATCH_LOG_LINES="1")
        assert (directory / "job" / "0.lines").stat().st_mode & 0o777 == mode


def test_hostile_arguments(tmp_path: Path) -> None:
    """Objects whose text fails, logs itself or lies on a device cost their line at most."""
    done = ran(
        tmp_path,
        "class Bad:\n    def __str__(self): raise RuntimeError\n"
        "class Logs:\n    def __str__(self): logging.getLogger('inner').error('from inside'); return 'logs'\n"
        "class Tensor:\n    is_cpu = False\n    device = 'cuda:0'\n"
        "    def __str__(self): raise SystemExit('the device was waited for')\n"
        "log = logging.getLogger('quiet'); log.propagate = False; log.setLevel('INFO')\n"
        "log.addHandler(logging.NullHandler())\n"
        "for each in (Bad(), Logs(), Tensor(), {'loss': Tensor()}, [Tensor()]): log.info('value %s', each)\n"
        "log.info(Tensor()); log.error('after')\n",
    )
    assert done.returncode == 0, done.stderr
    found = texts(tmp_path)
    assert found[-1] == "quiet: after"
    assert "quiet: value logs" in found
    assert found.count("quiet: value %s") == 3


def test_broken_files(tmp_path: Path) -> None:
    """Files of others: wrong sizes, wrong headers, links and wild slots end in an error or are left out."""
    path = tmp_path / "0.lines"
    writer = LineWriter(Folder.open(tmp_path), path.name)
    for number in range(300):
        writer.write(f"line {number}", source=Source.LOG, severity=9, step=number)
    good = path.read_bytes()
    assert [line.number for line in read_lines_at(path)] == list(range(100, 300))
    broken = tmp_path / "1.lines"
    for content in (b"", good[:-1], good + b"x", b"\0" * len(good)):
        broken.write_bytes(content)
        with pytest.raises(BlackBoxError):
            read_lines_at(broken)
    broken.write_bytes(good[:64] + os.urandom(len(good) - 64))
    assert len(read_lines_at(broken)) <= lines.SLOTS
    (tmp_path / "2.lines").symlink_to(path)
    with pytest.raises(OSError, match="regular"):
        read_lines_at(tmp_path / "2.lines")


def test_full_file_system(tmp_path: Path) -> None:
    """No room for the file costs the lines, and neither the black box nor the training."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "0.lines-before").mkdir()  # the file of before cannot get its name
    (tmp_path / "job" / "0.lines").touch()
    done = ran(tmp_path, "print('goes on')\n")
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "could not keep the newest lines" in done.stderr
