"""The sitecustomize that wakes rankwatch: which processes it acts in, and that it hides nobody else's."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rankwatch.automatic import installing, recording
from rankwatch.automatic.launching import SITE, recording_environment
from rankwatch.automatic.site import sitecustomize
from rankwatch.launchers import LOCAL_RANK_VARIABLES, RANK_VARIABLES

pytestmark = pytest.mark.process

PYTHON = "/usr/bin/python"
SPAWN = [
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=4)",
    "--multiprocessing-fork",
]
FORKSERVER = ["-c", "from multiprocessing.forkserver import main; main(1, 2)"]
RANK = {"RANK": "1", "WORLD_SIZE": "2"}
SINGLE = {"RANKWATCH_SINGLE_PROCESS": "1"}


@pytest.mark.parametrize(
    ("words", "env", "role"),
    [
        (["train.py"], RANK, "rank"),
        (["-u", "train.py", "--flag"], RANK, "rank"),
        (["-m", "train"], {"SLURM_PROCID": "3"}, "rank"),
        (["-W", "error", "-Xdev", "-um", "package.train"], RANK, "rank"),
        (["-c", "import train"], RANK, "rank"),
        (["train.py"], {}, ""),
        (["train.py"], SINGLE, "rank"),
        (["train.py"], {"RANKWATCH_SINGLE_PROCESS": "no"}, ""),
        (["train.py"], {**RANK, "RANKWATCH_DISABLE": "1"}, ""),
        (["/venv/bin/torchrun", "train.py"], SINGLE, ""),
        (["/venv/bin/accelerate", "launch", "train.py"], SINGLE, ""),
        (["-m", "torch.distributed.run", "train.py"], SINGLE, ""),
        (["-m", "accelerate.commands.launch", "train.py"], SINGLE, ""),
        (["-m", "pip", "install", "x"], RANK, ""),
        (["-mpip", "install", "x"], RANK, ""),
        (["-m", "pipeline"], RANK, "rank"),
        (["/venv/bin/pip", "install", "x"], RANK, ""),
        (["/venv/lib/torch/_inductor/compile_worker/__main__.py"], RANK, ""),
        (SPAWN, RANK, ""),
        (SPAWN, SINGLE, "child"),
        (SPAWN, {"SLURM_PROCID": "0"}, "child"),
        (["-c", "from multiprocessing.resource_tracker import main;main(5)"], RANK, ""),
        (FORKSERVER, SINGLE, "child"),  # what it forks may be a rank
        (FORKSERVER, RANK, ""),
        (["train.py"], {**RANK, "RANKWATCH_RANK_PROCESS": "1:1,,,,,,,"}, ""),  # a rank has started it
        (["train.py"], {**RANK, "RANKWATCH_RANK_PROCESS": f"{os.getpid()}:1,,,,,,,"}, "rank"),
        (["train.py"], {**RANK, "RANKWATCH_RANK_PROCESS": "1?:1,,,,,,,"}, "child"),  # its parent may be one
        (["train.py"], {**RANK, "RANKWATCH_RANK_PROCESS": f"{os.getpid()}?:1,,,,,,,"}, "rank"),
        (["train.py"], {**RANK, "RANKWATCH_RANK_PROCESS": "1:,,,,,,,"}, "rank"),  # it has a place of its own
        ([], RANK, "rank"),
    ],
)
def test_role(
    words: Sequence[str], env: Mapping[str, str], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks, but neither launchers nor what a rank starts for its work."""
    for name in (*sitecustomize._PLACE, *SINGLE, "RANKWATCH_DISABLE", "RANKWATCH_RANK_PROCESS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "orig_argv", [PYTHON, *words])
    assert sitecustomize._role() == role


def test_same_places() -> None:
    """The file may not import rankwatch, so it repeats what it shares with it."""
    assert sitecustomize._RANKS == RANK_VARIABLES
    assert sitecustomize._LOCAL_RANKS == LOCAL_RANK_VARIABLES
    assert sitecustomize._PLACE == recording._PLACE


def test_woken_before_what_is_watched() -> None:
    """A module that is half imported when rankwatch wakes would be missed."""
    wakers = tuple(f"{each}." for each in sitecustomize._FRAMEWORKS)
    assert [name for name in installing.patches() if not f"{name}.".startswith(wakers)] == []


def test_readable_by_old_pythons() -> None:
    """Any Python 3 below `rankwatch run` reads the file, also one that rankwatch does not support."""
    tree = ast.parse((SITE / "sitecustomize.py").read_text(), feature_version=(3, 6))
    at_top = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    assert [name.name for each in at_top for name in each.names] == ["os", "sys"]


def python(
    code: str, path: Sequence[Path | str] = (), interpreter: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A script below `rankwatch run`, as a rank."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "RANK": "0", **variables}
    env = recording_environment(env)
    return subprocess.run(
        [interpreter, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )


def sitecustomize_in(directory: Path, code: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(code)
    return directory


WAITS = "import sys; print([type(each).__name__ for each in sys.meta_path].count('_Waker'))\n"


def test_users_own(tmp_path: Path) -> None:
    """The user's sitecustomize runs once, and is the one that the process has. The folder is not in sys.path,
    and what the user imports is what it was."""
    own = sitecustomize_in(tmp_path / "own", "import sys; print('own'); sys.mark = 1\n")
    code = (
        WAITS + "import sys, sitecustomize\n"
        "print(sitecustomize.__file__, sys.mark, any('rankwatch' in each for each in sys.path[1:2]))\n"
    )
    ended = python(code, [own])
    assert (ended.stdout, ended.stderr) == (f"own\n1\n{own}/sitecustomize.py 1 False\n", "")


@pytest.mark.parametrize("content", ["raise ValueError('user')\n", "import absent_module\n"])
def test_users_own_raises(tmp_path: Path, content: str) -> None:
    """Python prints what it prints without rankwatch, goes on, and rankwatch waits."""
    own = sitecustomize_in(tmp_path / "own", content)
    ended = python(WAITS + "print('sitecustomize' in sys.modules)\n", [own])
    without = subprocess.run(
        [sys.executable, "-c", "pass"], env={**os.environ, "PYTHONPATH": str(own)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert "Error: user" in without.stderr or "No module named 'absent_module'" in without.stderr
    assert (ended.stdout, ended.stderr) == ("1\nFalse\n", without.stderr)


def test_costs_nothing_before_a_framework() -> None:
    """No other module is imported, in a rank or elsewhere."""
    code = "import sys; print(*sorted(sys.modules))"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    more = set(python(code).stdout.split()) - set(plain.stdout.split())
    assert more <= {"sitecustomize"}


def library(directory: Path, code: str = "") -> Path:
    """A folder with a stand-in for torch that is imported at once."""
    (directory / "torch").mkdir(parents=True)
    (directory / "torch" / "__init__.py").write_text(code)
    return directory


@pytest.mark.parametrize("early", [True, False])
def test_wakes_at_a_framework(tmp_path: Path, early: bool) -> None:
    """The script's import of torch wakes rankwatch, and so does that of a user's sitecustomize."""
    own = sitecustomize_in(tmp_path / "own", "import torch\n" if early else "")
    code = "import sys\n" if early else "import torch, sys\n"
    code += "print('rankwatch.automatic.installing' in sys.modules, sys.modules['torch'].__file__)\n"
    ended = python(code + WAITS, [library(tmp_path), own])
    assert (ended.stdout, ended.stderr) == (f"True {tmp_path}/torch/__init__.py\n0\n", "")


def other_interpreters() -> list[str]:
    """Interpreters of this machine that have no rankwatch, the oldest first."""
    roots = [Path(sys.base_prefix), *sorted(Path(sys.base_prefix).parent.glob("3.*"))]
    found = [Path("/usr/bin/python3"), *(each / "bin" / "python3" for each in roots)]
    return [str(each) for each in dict.fromkeys(found) if each.exists() and not has_rankwatch(each)]


def has_rankwatch(interpreter: Path) -> bool:
    return any(interpreter.resolve().parents[1].glob("lib/python3*/*-packages/rankwatch*"))


@pytest.mark.parametrize("interpreter", other_interpreters())
def test_foreign_interpreter(interpreter: str, tmp_path: Path) -> None:
    """An interpreter without rankwatch takes the package that `rankwatch run` came from, and nothing else of
    its folder. One that is too old trains on, and rank 0 says why nothing is recorded."""
    code = (
        "import torch, sys; new = sys.version_info >= (3, 11)\n"
        "print(new, 'rankwatch.automatic.installing' in sys.modules)\n"
        "import importlib.util; print(importlib.util.find_spec('rankwatch_agent'))\n"
    )
    ended = python(code, [library(tmp_path)], interpreter)
    assert ended.returncode == 0
    new_enough, *rest = ended.stdout.split()
    assert rest == [new_enough, "None"]
    if new_enough == "True":
        assert ended.stderr == ""
    else:
        assert ended.stderr.startswith(f"rankwatch records nothing in {interpreter}")
        assert ended.stderr.endswith("it needs Python 3.11 or newer\n") and ended.stderr.count("\n") == 1


def test_folder_of_the_same_name(tmp_path: Path) -> None:
    """A folder `rankwatch` of results in the path of the training is no package."""
    results = library(tmp_path)
    (results / "rankwatch").mkdir()
    interpreter = other_interpreters()[-1]
    code = "import torch, sys; print('rankwatch.automatic.installing' in sys.modules)"
    ended = python(code, [results], interpreter)
    assert ended.stdout == f"{version_of(interpreter) >= (3, 11)}\n"


def test_broken_installation(tmp_path: Path) -> None:
    """A rankwatch that cannot be imported costs one line, not the training."""
    broken = library(tmp_path)
    (broken / "rankwatch").mkdir()
    (broken / "rankwatch" / "__init__.py").write_text("raise RuntimeError('half installed')\n")
    ended = python("import torch; print('trains')", [broken])
    assert ended.stdout == "trains\n"
    assert ended.stderr.endswith(": half installed\n") and ended.stderr.count("\n") == 1


def test_path_of_the_environment() -> None:
    """In front, once, and without an empty part, which would be the working directory."""
    assert recording_environment({})["PYTHONPATH"] == str(SITE)
    assert recording_environment({"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == f"{SITE}:/a:/b"
    again = recording_environment(recording_environment({"PYTHONPATH": "/a"}))
    assert again["PYTHONPATH"] == f"{SITE}:/a"
    assert recording_environment({"RANKWATCH_SINGLE_PROCESS": "0"})["RANKWATCH_SINGLE_PROCESS"] == "0"


def test_half_imported_library(tmp_path: Path) -> None:
    """`from accelerate import Accelerator` imports torch in the middle of what is watched."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").write_text("from accelerate import accelerator\n")
    (tmp_path / "accelerate" / "accelerator.py").write_text("import torch\nclass Accelerator: pass\n")
    code = (
        "import sys\nimport rankwatch.automatic.installing as installing\n"
        "seen = []\ninstalling.patches = lambda: {'accelerate.accelerator': seen.append}\n"
        "from accelerate import accelerator\nprint(seen == [accelerator])\n"
    )
    ended = python(code, [library(tmp_path)])
    assert (ended.stdout, ended.stderr) == ("True\n", "")


@pytest.mark.process
def test_card_in_a_foreign_interpreter(tmp_path: Path) -> None:
    """A run in an interpreter without rankwatch is recorded, and that of `rankwatch run` prints its card."""
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text("")
    code = (
        "import keras\nfrom rankwatch.automatic import recording\nrun = recording.opened()\n"
        "for _ in range(3):\n    run.begin_step(); run.end_step()\n"
        "import rankwatch.lifecycle; rankwatch.lifecycle.DEADLINE_SECONDS = 120.0\n"
    )
    interpreter = next(each for each in other_interpreters() if version_of(each) >= (3, 11))
    variables = {"RANKWATCH_DIR": f"{tmp_path}/boxes", "RANKWATCH_RUN": "job", "RANKWATCH_SUMMARY": "1"}
    ended = python(code, [tmp_path], interpreter, **variables)
    assert ended.returncode == 0
    assert "rankwatch: run job finished, 3 steps in " in ended.stderr, ended.stderr


def version_of(interpreter: str) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))
