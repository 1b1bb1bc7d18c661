"""The place of a box: a living writer keeps it, a dead one gives it up, and another user cannot take it."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.writer import Writer
from rankwatch.identity import Identity, safe_run
from rankwatch.sweep import SUFFIXES_BESIDE
from support.processes.mounts import run_with_tmpfs
from support.processes.python import python
from support.processes.users import ALICE, BOB, program_of, run_as
from support.training.blackbox import box, header

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
        assert header(path).pid == first.pid
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
    path.chmod(0o644)
    with path.open("r+b") as file:  # the pid of a living process, this one
        at = file.read(4096).index(first.pid.to_bytes(4, "little"))
        file.seek(at)
        file.write(os.getpid().to_bytes(4, "little"))
    with trainer(tmp_path) as second:
        assert first_line(second) == "Run job"
        assert header(path).pid == second.pid


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
    code = "import sys, rankwatch\nprint('ready', flush=True)\ninput()\n" + START + WAIT
    with ExitStack() as stack:
        processes = [stack.enter_context(trainer(tmp_path, code)) for _ in range(6)]
        assert [first_line(each) for each in processes] == ["ready"] * 6
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        kinds = sorted(first_line(each).split()[0] for each in processes)
    assert kinds == ["DisabledRun"] * 5 + ["Run"]


@needs_root
def test_directory_of_another_user(tmp_path: Path) -> None:
    """The run is recorded under another name, the same on all ranks of the node, and one line says so."""
    tmp_path.chmod(0o1777)
    (tmp_path / "job").mkdir(mode=0o777)
    os.chown(tmp_path / "job", NOBODY, NOBODY)
    code = START.replace('run="job"', 'run="job", rank={rank}, world_size=2')
    for rank in (0, 1):
        done = python(code.format(rank=rank), directory=tmp_path)
        assert done.stdout == "Run job-uid0\n"
        assert done.stderr.count("\n") == 1
        assert "the directory of that name is another user's" in done.stderr
        assert (tmp_path / "job-uid0" / f"{rank}.blackbox").exists()
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
        assert header(node_directory / "job" / "0.blackbox").pid == first.pid


@needs_root
@pytest.mark.parametrize(
    "put",
    [lambda job: job.symlink_to(job.parent), Path.touch, lambda job: (job.mkdir(), job.chmod(0o777))],
    ids=["link", "file", "open to others"],
)
def test_name_that_is_no_safe_directory(tmp_path: Path, put: Callable[[Path], object]) -> None:
    """A link, a file, and a directory into which others can write are left alone too."""
    put(tmp_path / "job")
    assert python(START, directory=tmp_path).stdout == f"Run job-uid{os.geteuid()}\n"


@needs_root
def test_names_that_can_be_guessed(tmp_path: Path) -> None:
    """Whoever takes them keeps nobody from being recorded. All ranks find the folder that the first has made,
    whatever others make then, and what has the name of a run of this user but not their id is left alone."""
    own = f"r-uid{os.geteuid()}"
    for name in ("r", own, f"{own}-2"):
        (tmp_path / name).symlink_to(tmp_path)
        os.chown(tmp_path / name, NOBODY, NOBODY, follow_symlinks=False)
    first, second = (
        Writer(tmp_path, Identity(run="r", rank=each, world_size=2), phases=()) for each in (0, 1)
    )
    assert first.path.parent == second.path.parent
    assert re.fullmatch(rf"{own}-\d{{9,13}}", first.path.parent.name)
    (tmp_path / f"{own}-10").mkdir()
    (tmp_path / f"{own}-9").mkdir()
    assert Writer(tmp_path, Identity(run="r"), phases=()).path.parent.name == f"{own}-9"
    assert len(f"{safe_run('r' * 200)}-uid{2**32 - 2}-{10**13 - 1}") <= 128, "the header holds so many"


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_permissions(tmp_path: Path, umask: int) -> None:
    """Everybody may read a box, as the agent is another user. Nobody may write to it, or beside it."""
    directory = tmp_path / "boxes"
    with trainer(directory, f"import os\nos.umask({umask})\n{START}{WAIT}") as process:
        assert first_line(process) == "Run job"
        found = {each.name: each.stat().st_mode & 0o7777 for each in (directory / "job").iterdir()}
    assert found.pop("0.blackbox") == 0o444
    assert [mode for mode in found.values() if mode & 0o022] == []
    assert directory.stat().st_mode & 0o7777 == 0o1777
    assert (directory / "job").stat().st_mode & 0o7777 == 0o755


@needs_root
def test_owner_of_the_directory(node_directory: Path) -> None:
    """Whoever creates the directory for all could exchange what others have in it. The first rank of a node
    says so in one sentence, with what to do, and records."""
    directory = node_directory / "boxes"
    run_as(ALICE, node_directory, "(directory / 'boxes').mkdir(); (directory / 'boxes').chmod(0o1777)")
    for variables, lines in (({}, 1), ({"LOCAL_RANK": "1"}, 0)):
        done = python(START, directory=directory, **variables)
        assert (done.stdout, done.stderr.count("\n")) == ("Run job\n", lines)
    os.chown(directory, 0, 0)
    directory.chmod(0o777)
    done = python(START, directory=directory)
    assert (done.stdout, done.stderr.count("\n")) == ("Run job\n", 1)
    why = "no sticky bit (mode 777), so other users could remove or replace black boxes; have root"
    assert why in done.stderr
    assert "/etc/tmpfiles.d" in done.stderr


@needs_root
@pytest.mark.parametrize(("owner", "kind"), [(ALICE, "DisabledRun"), (0, "Run")])
def test_directory_that_is_a_link(node_directory: Path, owner: int, kind: str) -> None:
    """A link of another user could lead into a home. One of root or of the own user is what they want."""
    home = node_directory.parent / "home"
    home.mkdir()
    link = node_directory / "boxes"
    link.symlink_to(home)
    os.chown(link, owner, owner, follow_symlinks=False)
    done = python(START, directory=link)
    assert done.stdout.split()[0] == kind
    assert (f"it is a link of user {ALICE}" in done.stderr) == (kind != "Run")
    assert [each.name for each in home.iterdir()] == ["job"] * (kind == "Run")


WAIT_BESIDE = """
import rankwatch, rankwatch.starting as starting
install = starting.install_beside_box
def wait_first(*arguments):
    print("published", flush=True)
    input()
    install(*arguments)
starting.install_beside_box = wait_first
"""
SWAP = """
(directory / "job").rename(directory / "before")
(directory / "job").symlink_to(arguments[0])
"""


@needs_root
def test_folder_that_becomes_a_link(node_directory: Path) -> None:
    """What stands beside a box of root comes into the folder of the box, although the owner of the directory
    has put a link to somebody else's folder in its place. Nothing there is created, replaced or removed."""
    home = node_directory.parent / "home"
    home.mkdir(mode=0o700)
    names = [f"0{suffix}" for suffix in (layout.SUFFIX, *SUFFIXES_BESIDE)]
    for name in names:
        (home / name).write_text("mine")
    os.chown(node_directory, ALICE, ALICE)
    code = f"import os\nos.environ['RANKWATCH_LOG_LINES'] = '1'\n{WAIT_BESIDE}{START}"
    code += "with run.checkpoint('save', path='/data'): pass\nrun.finish()\n"
    with trainer(node_directory, code) as process:
        assert first_line(process) == "published"
        run_as(ALICE, node_directory, SWAP, str(home))
        stdout, _ = process.communicate("\n", timeout=600)
    assert (process.returncode, stdout) == (0, "Run job\n")
    assert {each.name: each.read_text() for each in home.iterdir()} == dict.fromkeys(names, "mine")
    found = {each.name for each in (node_directory / "before").iterdir()}
    assert found == {"0.blackbox", "0.lines", "0.checkpoints"}


@needs_root
def test_lock_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others can open a box only once its writer has locked it: whoever is faster would keep it from that."""
    modes = []
    lock = fcntl.lockf

    def locked(file: int, command: int) -> None:
        modes.append(os.fstat(file).st_mode & 0o777)
        lock(file, command)

    monkeypatch.setattr(fcntl, "lockf", locked)
    writer = Writer(tmp_path, Identity(run="job"), phases=())
    assert modes == [0o600]
    assert writer.path.stat().st_mode & 0o777 == 0o444


def test_lock_of_another_user(node_directory: Path) -> None:
    """Whoever may read a run's folder may lock it, for ever. The next attempt does not wait for that."""
    with trainer(node_directory) as first:
        first_line(first)
    code = "fcntl.flock(os.open(directory / 'job', os.O_RDONLY), fcntl.LOCK_EX)\ndone()"
    with program_of(BOB, node_directory, code), trainer(node_directory) as second:
        assert first_line(second) == "Run job"


@needs_root
@pytest.mark.parametrize(
    ("mode", "lag"),
    [("1777", 1.0), ("777", 0.0), ("700", 0.0)],
    ids=["shared", "of a tenant", "of a user"],
)
def test_mounted_directory(tmp_path: Path, mode: str, lag: float) -> None:
    """One of mode 1777 may be mounted into containers of others, who may have the same user id: memory is
    copied. One without the sticky bit is a tenant's own, which needs neither that nor a warning."""
    done = run_with_tmpfs(tmp_path, f"size=1g,mode={mode}", START + LAG)
    assert (done.stdout, done.stderr) == (f"Run job\n{lag}\n", "")


LAG = """
import pathlib
from rankwatch.blackbox import layout
from rankwatch.blackbox.reader import Reader
print(Reader(pathlib.Path(os.environ["RANKWATCH_DIR"], "job", "0.blackbox")).header.lag_seconds)
"""


def test_directory_that_is_not_mounted(tmp_path: Path) -> None:
    """The usual directory of a node is mapped, and any is copied where the user says so."""
    tmp_path.chmod(0o1777)
    for text, lag, lines in (("", 0.0, 0), ("copied", 1.0, 0), ("mapped", 0.0, 0), ("maped", 0.0, 1)):
        done = python(START, directory=tmp_path, RANKWATCH_BOX_WRITES=text)
        assert (header(box(tmp_path)).lag_seconds, done.stderr.count("\n")) == (lag, lines)


@needs_root
def test_without_proc(tmp_path: Path) -> None:
    """Where /proc is not mounted, boxes are recorded, kept and replaced all the same."""
    code = (
        "import os, subprocess, sys\nsubprocess.run(['mount', '-t', 'tmpfs', 'tmpfs', '/proc'], check=True)\n"
    )
    code += f"for _ in range(2): subprocess.run([sys.executable, '-c', {START!r}], check=True)\n"
    done = run_with_tmpfs(
        tmp_path, "size=1g", code + "print(sorted(os.listdir(os.environ['RANKWATCH_DIR'] + '/job')))"
    )
    assert done.stdout == "Run job\nRun job\n['0.blackbox', 'earlier']\n", done.stderr


def test_directory_that_vanishes(tmp_path: Path) -> None:
    """Somebody cleans up below a run that goes on: it ends without a word."""
    code = START + "import shutil, sys\nshutil.rmtree(sys.argv[1])\nwith run.step(): pass\nrun.finish()\n"
    for mode in ("mapped", "copied"):
        directory = tmp_path / mode
        done = python(code, str(directory), directory=directory, RANKWATCH_BOX_WRITES=mode)
        assert (done.returncode, done.stderr) == (0, "")
