"""`rankwatch run`: starts a command whose ranks record themselves, without a change of their code."""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rankwatch.automatic.launching import recording_environment
from rankwatch.conventions import environment
from rankwatch.errors import UsageError
from rankwatch.identity import as_contact
from rankwatch.settings import SentenceParser
from rankwatch.variables import MOST_PROFILES, is_disabled, unix_time
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.output import note

NOT_FOUND_STATUS = 127
NOT_EXECUTABLE_STATUS = 126
"""As a shell, so that a script sees what it would see without `rankwatch run`."""
_PYTHON = re.compile(r"python[0-9.]*t?$")
_SHEBANG_READ = 256
_WITHOUT_ENVIRONMENT = ("sudo", "ssh", "docker", "podman", "kubectl")
_SLURM_EXPORTS = {"srun": "SLURM_EXPORT_ENV", "sbatch": "SBATCH_EXPORT"}
"""Variable that stands for the option --export. `sbatch --export` sets that of srun in the job."""
_WITHOUT_SITE = {
    "S": "-S makes Python skip sitecustomize",
    "I": "-I makes Python ignore PYTHONPATH",
    "E": "-E makes Python ignore PYTHONPATH",
}


def main(arguments: Sequence[str]) -> int:
    """Replace this process by the command. Returns only if that is not possible. Raises UserError."""
    given = _parser().parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise UserError("no command is given, expected one such as: rankwatch run -- torchrun train.py")
    try:
        env = recording_environment(os.environ) | dict(_settings(given))
    except UsageError as error:
        raise UserError(str(error)) from None
    program = shutil.which(command[0])
    for reason in _obstacles(program, command):
        _say(f"nothing will be recorded: {reason}")
    return _replace_process(program, command, env)


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch run",
        usage="rankwatch run [options] -- COMMAND ...",
        description="Start COMMAND, and record steps, phases, loss and checkpoints of each of its ranks.\n"
        "COMMAND is anything that starts Python in the end: torchrun, accelerate launch, srun, mpirun,\n"
        "python, a shell script. Its words, its output and its exit status stay as they are.",
        epilog="The options set variables of the environment, which may also be set otherwise; the docs\n"
        "(docs/zero-code.md) name them. Processes that do not train record nothing.",
    )
    parser.add_argument("--run", metavar="NAME", help="name of the run (default: as the launcher names it)")
    parser.add_argument("--run-class", metavar="CLASS", help="class of the run, such as production")
    parser.add_argument(
        "--contact", metavar="CONTACT", help="who is told of the run: #channel, or name@example.com"
    )
    parser.add_argument("--target-steps", metavar="N", type=int, help="number of steps the run is to reach")
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        help="when the run is to be done: 2026-12-01T08:00Z, or Unix seconds",
    )
    parser.add_argument(
        "--flops-per-token",
        metavar="X",
        type=float,
        help="FLOPs of the model for a token, forward and backward: 6 for each parameter of a dense one",
    )
    parser.add_argument(
        "--baseline-tokens-per-second",
        metavar="X",
        type=float,
        help="what one rank alone makes, for the efficiency of scaling",
    )
    parser.add_argument(
        "--checkpoint-interval-seconds",
        metavar="SECONDS",
        type=float,
        help="longest time between two checkpoints that the run intends",
    )
    parser.add_argument("--directory", metavar="DIR", type=Path, help="of the black boxes")
    parser.add_argument(
        "--profile-on-slow",
        metavar="N",
        type=int,
        help="let `rankwatch profile` and incidents have the N slowest of the next steps recorded by\n"
        "torch.profiler",
    )
    for name, text in (
        ("summary", "rank 0 prints nothing at start and at exit"),
        ("collectives", "record no collectives"),
        ("flight-recorder", "do not serve PyTorch's flight recorder to the agent"),
        ("nccl-timing", "do not ask PyTorch for the times of NCCL's collectives"),
    ):
        parser.add_argument(f"--no-{name}", action="store_true", help=text)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command to start")
    return parser


def _settings(given: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield variables of the environment that the options set. Raises UserError."""
    for option, value in (("run", given.run), ("run-class", given.run_class)):
        if value is not None and not value.strip():
            raise UserError(f"--{option} is empty, expected a name")
    if given.contact is not None and not as_contact(given.contact):
        expected = "expected #channel or name@example.com, at most 64 characters"
        raise UserError(f"--contact is {given.contact!r:.100}, {expected}")
    if given.target_steps is not None and given.target_steps < 1:
        raise UserError(f"--target-steps is {given.target_steps}, expected a number above 0")
    if given.profile_on_slow is not None and not 1 <= given.profile_on_slow <= MOST_PROFILES:
        raise UserError(f"--profile-on-slow is {given.profile_on_slow}, expected 1 to {MOST_PROFILES} traces")
    if given.deadline is not None:
        try:
            unix_time(given.deadline)
        except ValueError as error:
            raise UserError(f"--deadline is {given.deadline!r:.100}, {error}") from None
    seconds = given.checkpoint_interval_seconds
    for option, amount in (
        ("checkpoint-interval-seconds", seconds),
        ("flops-per-token", given.flops_per_token),
        ("baseline-tokens-per-second", given.baseline_tokens_per_second),
    ):
        if amount is not None and not 0 < amount < math.inf:
            raise UserError(f"--{option} is {amount}, expected a number above 0")
    for variable, value in (
        (environment.RUN, given.run),
        (environment.RUN_CLASS, given.run_class),
        (environment.CONTACT, given.contact),
        (environment.TARGET_STEPS, given.target_steps),
        (environment.DEADLINE, given.deadline),
        (environment.FLOPS_PER_TOKEN, given.flops_per_token),
        (environment.BASELINE_TOKENS_PER_SECOND, given.baseline_tokens_per_second),
        (environment.CHECKPOINT_INTERVAL, seconds),
        (environment.DIRECTORY, given.directory and given.directory.absolute()),
        (environment.PROFILE_ON_SLOW, given.profile_on_slow),
        (environment.SUMMARY, "0" if given.no_summary else None),
        (environment.COLLECTIVES, "0" if given.no_collectives else None),
        (environment.FLIGHT_RECORDER, "0" if given.no_flight_recorder else None),
        (environment.NCCL_TIMING, "0" if given.no_nccl_timing else None),
    ):
        if value is not None:
            yield variable, str(value)


def _obstacles(program: str | None, command: Sequence[str]) -> Iterator[str]:
    """Yield why a Python that this command starts will not find rankwatch, as far as its words show it."""
    if is_disabled(os.environ):
        yield f"{environment.DISABLE} is set"
    words = [*_shebang(program), *command]
    for at, word in enumerate(words):
        if _PYTHON.match(Path(word).name):
            yield from _of_flags(words[at + 1 :])
    name = Path(command[0]).name
    if name in _WITHOUT_ENVIRONMENT:
        yield f"{name} does not pass the environment on; put `rankwatch run` behind it"
    for at, word in enumerate(command):
        yield from _of_launcher(Path(word).name, _options(command[at + 1 :]))


def _of_launcher(name: str, options: Sequence[str]) -> Iterator[str]:
    """Yield why a launcher with these options does not pass PYTHONPATH on."""
    if name == "env" and {"-", "-i", "--ignore-environment"} & set(options):
        yield "env -i clears the environment"
    if name in _SLURM_EXPORTS:
        exported = os.environ.get(_SLURM_EXPORTS[name], "ALL")
        for option, following in zip(options, [*options[1:], ""], strict=False):
            if option.partition("=")[0] == "--export":
                exported = option.partition("=")[2] or following
        if not {"ALL", "PYTHONPATH"} & set(exported.split(",")):
            yield f"{name} with --export={exported} passes no PYTHONPATH on; put `rankwatch run` behind it"
    if name in ("mpirun", "mpiexec", "mpiexec.hydra") and {"-genvnone", "-envnone"} & set(options):
        yield f"{name} -genvnone clears the environment; put `rankwatch run` behind it"


def _options(words: Sequence[str]) -> list[str]:
    """Return the options before a command. A word after an option may be its value, or the command
    already."""
    after_option = False
    for count, word in enumerate(words):
        if not word.startswith("-") and not after_option:
            return list(words[:count])
        after_option = word.startswith("-") and "=" not in word
    return list(words)


def _of_flags(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if not re.match(r"-[A-Za-z]", word):
            return
        letters = re.split("[cmWX]", word[1:])[0]  # what follows these is their value
        yield from (_WITHOUT_SITE[letter] for letter in letters if letter in _WITHOUT_SITE)
        if letters != word[1:]:
            return


def _shebang(program: str | None) -> list[str]:
    """Return the interpreter of a script and its flags; empty for any other program."""
    if program is None:
        return []
    try:
        with Path(program).open("rb") as file:
            head = file.read(_SHEBANG_READ)
    except OSError:
        return []
    first = head.partition(b"\n")[0].decode("utf-8", "replace")
    return first[2:].split() if first.startswith("#!") else []


def _replace_process(program: str | None, command: Sequence[str], env: Mapping[str, str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execvpe(command[0], list(command), env)
    except FileNotFoundError:
        if program is None:
            _say(f"could not find the command {command[0]!r:.200}")
        else:
            _say(f"could not run {command[0]!r:.200}: its interpreter is not there")
        return NOT_FOUND_STATUS
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        _say(f"could not run {command[0]!r:.200}: {reason}")
        return NOT_EXECUTABLE_STATUS


def _say(text: str) -> None:
    note(f"rankwatch run: {text}")
