"""`rankwatch run`: the command sees its own words, an environment with rankwatch in it, and nothing else."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch.automatic.launching import SITE
from rankwatch_cli.main import main

pytestmark = pytest.mark.process

SEARCHED = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RANKWATCH_")}
    env = {**own, **variables}
    return subprocess.run(
        [sys.executable, "-m", "rankwatch_cli", "run", *arguments],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


SHOW = (
    "import os, sys; print(sys.argv[1:], sorted((k, v) for k, v in os.environ.items() if 'RANKWATCH' in k), "
    "os.environ['PYTHONPATH'])"
)


def test_command() -> None:
    """Words, status and process stay; the folder comes in front of PYTHONPATH."""
    command = [sys.executable, "-c", SHOW, "--", "a b", "*"]
    ended = run("--run", "r", "--target-steps", "7", "--", *command, PYTHONPATH="/own")
    variables = [
        ("RANKWATCH_PYTHON", sys.executable),
        ("RANKWATCH_RUN", "r"),
        ("RANKWATCH_SINGLE_PROCESS", "1"),
        ("RANKWATCH_TARGET_STEPS", "7"),
    ]
    assert ended.stdout == f"{['--', 'a b', '*']} {variables} {SITE}:/own\n"
    assert (ended.returncode, ended.stderr) == (0, "")


def test_all_options(tmp_path: Path) -> None:
    options = [
        "--run-class", "production", "--contact", "me@example.com",
        "--checkpoint-interval-seconds", "60", "--directory", str(tmp_path),
        "--no-summary", "--no-collectives", "--no-flight-recorder", "--no-nccl-timing",
    ]  # fmt: skip
    shown = run(*options, sys.executable, "-c", SHOW).stdout
    for name, value in {
        "RUN_CLASS": "production", "CONTACT": "me@example.com",
        "CHECKPOINT_INTERVAL_SECONDS": "60.0", "DIR": str(tmp_path),
        "SUMMARY": "0", "COLLECTIVES": "0", "FLIGHT_RECORDER": "0", "NCCL_TIMING": "0",
    }.items():  # fmt: skip
        assert f"('RANKWATCH_{name}', {value!r})" in shown


def test_status_and_script(tmp_path: Path) -> None:
    """A shell script passes the environment on, and its status comes back."""
    script = tmp_path / "train.sh"
    script.write_text(f'#!/bin/bash\n"{sys.executable}" -c "import os; print(os.getpid())"\nexit 3\n')
    script.chmod(0o755)
    ended = run("--", str(script))
    assert ended.returncode == 3 and ended.stdout.strip().isdecimal()


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (["no-such-command"], 127, "could not find the command 'no-such-command'"),
        (["{plain}"], 126, "could not run '{plain}': Permission denied"),
        (["{script}"], 127, "could not run '{script}': its interpreter is not there"),
    ],
)
def test_no_such_command(command: Sequence[str], status: int, message: str, tmp_path: Path) -> None:
    """One sentence, and the status that a shell gives."""
    script = tmp_path / "train.sh"
    script.write_text("#!/no/such/bash\n")
    script.chmod(0o755)
    plain = tmp_path / "train.py"
    plain.write_text("pass\n")
    ended = run("--", *(each.format(script=script, plain=plain) for each in command))
    said = message.format(script=script, plain=plain)
    assert (ended.returncode, ended.stderr) == (status, f"rankwatch run: {said}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no command is given"),
        (["--"], "no command is given"),
        (["--target-steps", "0", "--", "true"], "--target-steps is 0, expected a number above 0"),
        (["--checkpoint-interval-seconds", "nan", "true"], "--checkpoint-interval-seconds is nan"),
        (["--profile-on-slow", "11", "true"], "--profile-on-slow is 11, expected 1 to 10 traces"),
        (["--run", " ", "true"], "--run is empty, expected a name"),
        (["--contact", "my team", "true"], "--contact is 'my team', expected #channel or name@example.com"),
    ],
)
def test_mistakes(arguments: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-S"], "-S makes Python skip sitecustomize"),
        (["-uI"], "-I makes Python ignore PYTHONPATH"),
        (["-B", "-E"], "-E makes Python ignore PYTHONPATH"),
        (["-u", "-W", "ignore::SyntaxWarning"], ""),
        (["-Wignore::SyntaxWarning", "-XE=1"], ""),
    ],
)
def test_deaf_python(flags: Sequence[str], said: str) -> None:
    """A Python that does not hear of rankwatch runs all the same, and one line says that it does not."""
    ended = run("--", sys.executable, *flags, "-c", "print('SIE')", "-S")
    assert ended.stdout == "SIE\n"
    assert ended.stderr == (f"rankwatch run: nothing will be recorded: {said}\n" if said else "")


def test_deaf_script(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text(f"#!{sys.executable} -I\nprint('ran')\n")
    script.chmod(0o755)
    ended = run(str(script))
    assert ended.stdout == "ran\n" and "-I makes Python ignore PYTHONPATH" in ended.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("srun --export=NONE -n 2 CMD", "srun with --export=NONE passes no PYTHONPATH on"),
        ("srun -n 2 --export HOME,RANK CMD", "srun with --export=HOME,RANK passes no PYTHONPATH on"),
        ("sbatch --export=NIL CMD", "sbatch with --export=NIL passes no PYTHONPATH on"),
        ("nohup srun -n2 --export=NONE CMD", "srun with --export=NONE passes no PYTHONPATH on"),
        ("srun --export=ALL,A=1 -n 2 CMD", ""),
        ("srun --export=PYTHONPATH,RANKWATCH_DIR CMD", ""),
        ("srun -n 2 CMD export.py --export=NONE", ""),
        ("srun CMD --export=NONE", ""),
        ("mpiexec.hydra -genvnone -n 2 CMD", "mpiexec.hydra -genvnone clears the environment"),
        ("mpirun -n 2 CMD -genvnone", ""),
        ("env -i CMD", "env -i clears the environment"),
        ("nohup env - CMD", "env -i clears the environment"),
        ("env -u HOME CMD", ""),
        ("sudo CMD", "sudo does not pass the environment on"),
    ],
)
def test_deaf_launcher(command: str, said: str, tmp_path: Path) -> None:
    """A launcher that keeps the environment from its ranks runs all the same, and one line says so."""
    for name in {word for word in command.split() if word[0].isalpha()} - {"CMD", "export.py", "HOME"}:
        (tmp_path / name).write_text("#!/bin/sh\necho ran\n")
        (tmp_path / name).chmod(0o755)
    ended = run("--", *command.replace("CMD", "true").split(), PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert ended.stdout == "ran\n"
    assert ended.stderr.startswith(f"rankwatch run: nothing will be recorded: {said}" if said else "")
    assert ended.stderr.count("\n") == bool(said)


WRAPPERS = {
    "env": "env A=1 CMD",
    "make": "make -s -f FILE",
    "nice": "nice -n 1 CMD",
    "nohup": "nohup CMD",
    "setsid": "setsid --wait CMD",
    "sh": "sh -c 'A=1; exec CMD'",
    "stdbuf": "stdbuf -oL CMD",
    "taskset": "taskset -c 0 CMD",
    "timeout": "timeout 60 CMD",
    "uv": "uv run --no-project --python PYTHON CMD",
    "xargs": "xargs -a FILE CMD",
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrapper(wrapper: str, tmp_path: Path) -> None:
    """Programs that start another one pass on what a rank needs: it wakes rankwatch when it imports torch."""
    if shutil.which(wrapper, path=SEARCHED) is None:
        pytest.skip(f"{wrapper} is not installed")
    (tmp_path / "torch.py").touch()
    script = tmp_path / "train.py"
    script.write_text("import sys, torch; print('rankwatch.automatic.installing' in sys.modules)\n")
    command = f"{sys.executable} {script}"
    (tmp_path / "file").write_text(f"all:\n\t{command}\n" if wrapper == "make" else "argument\n")
    words = WRAPPERS[wrapper].replace("CMD", command).replace("FILE", str(tmp_path / "file"))
    words = words.replace("PYTHON", sys.executable)
    ended = run("--", *shlex.split(words), PATH=SEARCHED)
    assert (ended.stdout, ended.returncode) == ("True\n", 0), ended.stderr


def test_job_that_exports_nothing() -> None:
    """A job of `sbatch --export=NONE` hands that on to each srun in it."""
    ended = run("--", "srun", "true", SLURM_EXPORT_ENV="NONE")
    assert "srun with --export=NONE passes no PYTHONPATH on" in ended.stderr


def test_switched_off() -> None:
    ended = run("true", RANKWATCH_DISABLE="1")
    assert ended.stderr == "rankwatch run: nothing will be recorded: RANKWATCH_DISABLE is set\n"
