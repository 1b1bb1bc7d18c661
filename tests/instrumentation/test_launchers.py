"""What each launcher tells its processes: their place, and the id of the run."""

from __future__ import annotations

import pytest

from rankwatch.errors import IdentityError
from rankwatch.launchers import Place, find_place, is_first_here, job_name, ranks_here, run_id

SLURM_STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("env", "place"),
    [
        pytest.param({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, Place(5, 8, 1), id="torchrun"),
        pytest.param(
            {**SLURM_STEP, "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"},
            Place(3, 4, 1), id="srun",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "8",
             "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}, Place(1, 2, 1), id="srun with fewer tasks",
        ),
        pytest.param(
            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None, id="script of sbatch",
        ),
        pytest.param(
            {**SLURM_STEP, "SLURM_PROCID": "1", "SLURM_NTASKS": "2",
             "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1"}, Place(9, 16, 1), id="torchrun under srun",
        ),
        pytest.param(
            {**SLURM_STEP, "SLURM_PROCID": "3", "SLURM_NTASKS": "4",
             "SLURM_LOCALID": "3", "WORLD_SIZE": "4"}, Place(3, 4, 3), id="srun with exported WORLD_SIZE",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            Place(3, 4, 1), id="Open MPI",
        ),
        pytest.param({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}, Place(3, 4, 1), id="Hydra"),
        pytest.param(
            {"LOCAL_RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "n", "MASTER_PORT": "1"},
            Place(1, 2, 1), id="Lightning",
        ),
        pytest.param(
            {"LOCAL_RANK": "1", "WORLD_SIZE": "16", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "8"},
            Place(9, 16, 1), id="node with its number of processes",
        ),
        pytest.param(
            {"LOCAL_RANK": "1", "WORLD_SIZE": "16", "NODE_RANK": "1", "NNODES": "2"},
            Place(9, 16, 1), id="node with the number of nodes",
        ),
        pytest.param({"RANK": "0"}, Place(0, 1), id="rank 0 alone"),
        pytest.param({"WORLD_SIZE": "1"}, None, id="one process"),
        pytest.param({}, None, id="no launcher"),
    ],
)  # fmt: skip
def test_place(env: dict[str, str], place: Place | None) -> None:
    assert find_place(env) == place


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"WORLD_SIZE": "4"}, "nothing gives this process its rank"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "nothing gives this process its rank"),
        ({"WORLD_SIZE": "16", "LOCAL_RANK": "1", "NODE_RANK": "1"}, "nothing gives this process its rank"),
        # One task for each node, which starts the ranks itself: its number is not a rank.
        (
            {"WORLD_SIZE": "16", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"},
            "nothing gives this process its rank",
        ),
        ({"RANK": "3"}, "RANK is 3, but WORLD_SIZE is not set"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4, but the world size is 4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "RANK is '-1', expected a whole number"),
    ],
)
def test_no_place(env: dict[str, str], message: str) -> None:
    """Processes that nothing tells apart are refused: otherwise all of them would be rank 0."""
    with pytest.raises(IdentityError, match=message):
        find_place(env)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"RANKWATCH_RUN": "mine", "RAY_JOB_ID": "01", "TORCHELASTIC_RUN_ID": "id"}, "mine"),
        ({"RAY_JOB_ID": "01000000", "TORCHELASTIC_RUN_ID": "id", "SLURM_JOB_ID": "7"}, "ray-01000000"),
        ({"TORCHELASTIC_RUN_ID": "id", "KUBEFLOW_TRAINING_JOB_ID": "k", "SLURM_JOB_ID": "7"}, "id"),
        ({"TORCHELASTIC_RUN_ID": "none", "KUBEFLOW_TRAINING_JOB_ID": "k", "SLURM_JOB_ID": "7"}, "k"),
        ({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}, "slurm-7"),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}, "slurm-7.2"),
        (
            {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", **SLURM_STEP, "SLURM_JOB_ID": "9"},
            "slurm-7_3.0",
        ),
        ({"PMIX_NAMESPACE": "prterun-node1-42@1"}, "mpi-prterun-node1-42@1"),
        ({"TORCHELASTIC_RUN_ID": "none"}, None),
        ({}, None),
    ],
)
def test_run_id(env: dict[str, str], expected: str | None) -> None:
    """The id that a person gives comes first, then that of the most specific scheduler."""
    assert run_id(env) == expected


@pytest.mark.parametrize(
    ("name", "tells"),
    [("llama-7b", True), ("train.sh", True), ("python3.11", False), ("torchrun", False), ("", False)],
)
def test_job_name(name: str, tells: bool) -> None:
    """srun names a job after its command; such a name tells nothing."""
    assert job_name({"SLURM_JOB_NAME": name}) == (name if tells else None)


@pytest.mark.parametrize(
    ("env", "first"),
    [
        ({}, True),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, False),
        ({"SLURM_LOCALID": "1"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, False),
        ({"MPI_LOCALRANKID": "0"}, True),
    ],
)
def test_first_of_node(env: dict[str, str], first: bool) -> None:
    """Each launcher says which process is the first one of its node."""
    assert is_first_here(env) == first


@pytest.mark.parametrize(
    ("env", "ranks"),
    [
        ({}, 1),
        ({"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, 4),
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_NTASKS_PER_NODE": "1"}, 4),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 8),
        ({"RANK": "3", "PET_NPROC_PER_NODE": "gpu"}, 8),
        ({"RANK": "3", "LOCAL_WORLD_SIZE": "0"}, 8),
    ],
)
def test_ranks_of_node(env: dict[str, str], ranks: int) -> None:
    """As the launcher says; a process without a launcher is alone; else it is the usual number of GPUs."""
    assert ranks_here(env) == ranks
