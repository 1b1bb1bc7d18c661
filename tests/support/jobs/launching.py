"""Running a command below `rankwatch run` in tests, and reading what its ranks have recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader
from support.servers.prometheus import reserved_port
from support.training.blackbox import of_kind

LOOP = Path(__file__).with_name("any_launcher.py")
STEPS = 6
RUN = (sys.executable, "-m", "rankwatch_cli", "run", "--")


class Rank(NamedTuple):
    """What a black box says of its rank."""

    run: str
    rank: int
    world_size: int
    local_rank: int
    steps: int
    attempt: int = 0


def require(program: str, package: str) -> str:
    """Path of a program; skips the test where the package that has it is not installed."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not installed (Debian: {package})")
    return path


def free_port() -> int:
    """A port of loopback that nobody else gets until the tests end, for a store that will listen on it."""
    return _PORTS.enter_context(reserved_port())


_PORTS = ExitStack()


def environment(directory: Path, **variables: str) -> dict[str, str]:
    """That of a job whose black boxes are below `directory`, without the variables of any launcher."""
    unset = ("RANKWATCH_", "SLURM_", "OMPI_", "PMI", "RANK", "WORLD_SIZE", "LOCAL_RANK")
    own = {name: value for name, value in os.environ.items() if not name.startswith(unset)}
    path = f"{Path(sys.executable).parent}:{own['PATH']}"
    return {
        **own, "PATH": path, "RANKWATCH_DIR": str(directory / "boxes"), "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR", "CHECKPOINT": str(directory / "model.pt"), "STEPS": str(STEPS),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **variables,
    }  # fmt: skip


def launch(
    command: Sequence[str], directory: Path, *, inside: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, below `rankwatch run`. inside: it has that in its own words."""
    return subprocess.run(
        [*(() if inside else RUN), *command],
        env=environment(directory, **variables),
        cwd=directory, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def ranks(directory: Path) -> list[Rank]:
    """All ranks that have left a black box, in order."""
    return sorted(_rank(path) for path in (directory / "boxes").glob("*/*.blackbox"))


def _rank(path: Path) -> Rank:
    with closing(Reader(path)) as reader:
        found = reader.header.identity
    steps = len(of_kind(path, RecordKind.STEP))
    return Rank(found.run, found.rank, found.world_size, found.local_rank, steps, found.attempt)
