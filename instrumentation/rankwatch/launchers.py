"""What launcher and scheduler say by variables: rank, world size, id of the run, number of the attempt.

A launcher counts only as a whole: a rank of one and a world size of another would fit by chance.

An attempt is one start of all ranks. The scheduler counts how often it has started the job, and torchrun how
often it has started the ranks since, beginning anew with each start of the job. The number of the attempt
joins both, so that it never repeats, and all nodes find the same one without asking each other. torchrun's
count alone is not the same on all nodes: a node that is only told to restart, because another one failed,
does not count that. So the black boxes of the node count too: see `blackbox.earlier_attempts`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from rankwatch import processes
from rankwatch.conventions import environment
from rankwatch.errors import IdentityError
from rankwatch.identity import MOST_ATTEMPTS

_NODE_RANKS = ("NODE_RANK", "GROUP_RANK", "SLURM_NODEID")
_PROCESSES_PER_NODE = ("LOCAL_WORLD_SIZE", "NPROC_PER_NODE", "PET_NPROC_PER_NODE", "SLURM_NTASKS_PER_NODE")
_RANKS_OF_NODE = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "HOROVOD_LOCAL_SIZE",
)
_USUAL_RANKS = 8
"""Of a node with GPUs."""
_NODES = ("GROUP_WORLD_SIZE", "NUM_NODES", "NNODES", "SLURM_NNODES")
_UNNAMED = re.compile(
    r"bash|sh|zsh|interactive|wrap|env|python[0-9.]*|torchrun|accelerate|deepspeed|rankwatch|uv|conda"
)
"""Names that SLURM itself gives to a job without a name: srun that of the command."""
_CYCLE_LINK = re.compile(r"cycle_info\.([!-~]{1,128})\.current")
_MOST_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"


class Place(NamedTuple):
    """Where a process stands in its job."""

    rank: int
    world_size: int
    local_rank: int | None = None
    """None if it is unknown."""


class _Launcher(NamedTuple):
    """The variables by which a launcher tells a process its place."""

    rank: str
    world_size: tuple[str, ...]
    local_rank: str


_LAUNCHERS = (
    _Launcher("RANK", ("WORLD_SIZE",), "LOCAL_RANK"),  # torchrun, accelerate, DeepSpeed, Ray Train, Kubeflow
    _Launcher("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), "SLURM_LOCALID"),
    _Launcher("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), "OMPI_COMM_WORLD_LOCAL_RANK"),
    _Launcher("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",), "MV2_COMM_WORLD_LOCAL_RANK"),
    _Launcher("PMI_RANK", ("PMI_SIZE",), "MPI_LOCALRANKID"),  # MPICH, Intel MPI, Hydra
    _Launcher("HOROVOD_RANK", ("HOROVOD_SIZE",), "HOROVOD_LOCAL_RANK"),
)
RANK_VARIABLES = tuple(each.rank for each in _LAUNCHERS)
LOCAL_RANK_VARIABLES = tuple(each.local_rank for each in _LAUNCHERS)


def find_place(env: Mapping[str, str]) -> Place | None:
    """Return the place that the variables of a launcher give; None without a launcher.

    Raises IdentityError if there are several processes and none of the variables tells them apart.
    """
    announced = _number(env, "WORLD_SIZE")
    for launcher in _LAUNCHERS:
        place = _place_by(launcher, env)
        # An MPI or SLURM task may start the ranks itself: then its own number is the one of a node.
        if place is not None and announced in (None, place.world_size):
            return place
    place = _place_by_node(env, announced)
    if place is not None or announced in (None, 1):
        return place
    raise IdentityError(
        f"WORLD_SIZE is {announced}, but nothing gives this process its rank: set RANK, "
        "or pass rank= and world_size= to rankwatch.start"
    )


def _place_by(launcher: _Launcher, env: Mapping[str, str]) -> Place | None:
    rank = _number(env, launcher.rank)
    world_size = _number(env, *launcher.world_size)
    if rank is None or (launcher.rank == "SLURM_PROCID" and _is_batch_script(env, rank)):
        return None
    if world_size is None:
        if rank:
            raise IdentityError(f"{launcher.rank} is {rank}, but {launcher.world_size[0]} is not set")
        world_size = 1
    if rank >= world_size:
        raise IdentityError(f"{launcher.rank} is {rank}, but the world size is {world_size}")
    return Place(rank, world_size, _number(env, "LOCAL_RANK", launcher.local_rank))


def _is_batch_script(env: Mapping[str, str], rank: int) -> bool:
    """Return True in a batch script of SLURM itself. It sees the number of all tasks, but is none of them."""
    return rank == 0 and "SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env


def _place_by_node(env: Mapping[str, str], world_size: int | None) -> Place | None:
    """Return the place of a process that knows its node and its rank there, as under Lightning's launcher."""
    local_rank, node = _number(env, "LOCAL_RANK"), _number(env, *_NODE_RANKS)
    if world_size is None or local_rank is None or node is None:
        return None
    if node == 0:
        return Place(local_rank, world_size, local_rank) if local_rank < world_size else None
    per_node = _number(env, *_PROCESSES_PER_NODE)
    nodes = _number(env, *_NODES)
    if per_node is None and nodes:
        per_node = world_size // nodes
    if per_node is None or not local_rank < per_node:
        return None
    rank = node * per_node + local_rank
    return Place(rank, world_size, local_rank) if rank < world_size else None


def run_id(env: Mapping[str, str]) -> str | None:
    """Return the id of the run that the user or the scheduler gives; None without one."""
    if run := env.get(environment.RUN):
        return run
    if ray := env.get("RAY_JOB_ID"):
        return f"ray-{ray}"
    torchelastic = env.get("TORCHELASTIC_RUN_ID", "")
    if torchelastic and torchelastic != "none":  # torchrun without --rdzv-id sets "none"
        return torchelastic
    if kubeflow := env.get("KUBEFLOW_TRAINING_JOB_ID"):
        return kubeflow
    if env.get("SLURM_JOB_ID"):
        return _slurm_id(env)
    if job := env.get("PMIX_NAMESPACE"):  # one for each mpirun of Open MPI
        return f"mpi-{job}"
    return None


def _slurm_id(env: Mapping[str, str]) -> str:
    job = env["SLURM_JOB_ID"]
    if (array := env.get("SLURM_ARRAY_JOB_ID")) and (task := env.get("SLURM_ARRAY_TASK_ID")):
        job = f"{array}_{task}"
    step = env.get("SLURM_STEP_ID", "")
    return f"slurm-{job}.{step}" if step.isdecimal() else f"slurm-{job}"


def job_name(env: Mapping[str, str]) -> str | None:
    """Return the name that the user gave the job; None without one."""
    name = env.get("SLURM_JOB_NAME", "")
    return name if name and not _UNNAMED.fullmatch(name) else None


def is_first_here(env: Mapping[str, str]) -> bool:
    """Return True unless the launcher says that this process is not the first one of the node."""
    local_ranks = (env[name] for name in LOCAL_RANK_VARIABLES if name in env)
    return next(local_ranks, "0") == "0"


def ranks_here(env: Mapping[str, str]) -> int:
    """Count the ranks of the job on this node. It is a guess where the launcher does not say it."""
    try:
        number = _number(env, *_PROCESSES_PER_NODE, *_RANKS_OF_NODE)
    except IdentityError:
        number = None  # such as PET_NPROC_PER_NODE=gpu
    if number:
        return number
    is_alone = not processes.is_child() and not any(each in env for each in RANK_VARIABLES)
    return 1 if is_alone else _USUAL_RANKS


def has_only_one_node(env: Mapping[str, str], world_size: int) -> bool:
    """Return True if the launcher says that it has started all ranks of the job on this node."""
    return "TORCHELASTIC_RUN_ID" in env and _number(env, "LOCAL_WORLD_SIZE") == world_size


def _number(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        if text := env.get(name):
            try:
                number = int(text)
            except ValueError:
                number = -1
            if number < 0:
                raise IdentityError(f"{name} is {text!r:.60}, expected a whole number")
            return number
    return None


def attempt_by(env: Mapping[str, str]) -> int:
    """Return the number of the attempt, from 0, by what scheduler and launcher count. A variable that is no
    number counts as none."""
    before, restarts, most_restarts = _counted(env)
    return min(before * (most_restarts + 1) + restarts, MOST_ATTEMPTS)


def most_attempts_by(env: Mapping[str, str]) -> int:
    """Return how many attempts there may be, unless the scheduler starts the job again; 0 if the launcher
    does not say."""
    if _count(env, _MOST_RESTARTS) is None:
        return 0
    before, _, most_restarts = _counted(env)
    return min((before + 1) * (most_restarts + 1), MOST_ATTEMPTS)


def started_before_by(env: Mapping[str, str]) -> tuple[int, int]:
    """Return how often the scheduler started the job before, and how often the launcher the ranks since."""
    requeues, restarts, _ = _counted(env)
    return requeues, restarts


def _counted(env: Mapping[str, str]) -> tuple[int, int, int]:
    """Return how often the scheduler has started the job before, how often torchrun has started the ranks
    since, and how often it may."""
    started_before = _count(env, environment.ATTEMPT)
    if started_before is None:
        started_before = _count(env, "SLURM_RESTART_COUNT")
    if started_before is None:
        started_before = max(0, (_count(env, "AWS_BATCH_JOB_ATTEMPT") or 1) - 1)  # counts from 1
    restarts = _count(env, "TORCHELASTIC_RESTART_COUNT") or 0
    return started_before, restarts, max(restarts, _count(env, _MOST_RESTARTS) or 0)


def nvrx_job_by(env: Mapping[str, str]) -> str:
    """Return the job by which NVRx's launcher reports its restart cycles: it names each rank the link to the
    newest one. Empty below other launchers."""
    link = _CYCLE_LINK.fullmatch(env.get("NVRX_CURRENT_CYCLE_INFO", "").rpartition("/")[2])
    return link[1] if link is not None else ""


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return min(int(text), MOST_ATTEMPTS) if text.isascii() and text.isdigit() and len(text) < 20 else None
