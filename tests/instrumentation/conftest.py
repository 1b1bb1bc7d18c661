"""Fixtures of the instrumentation's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import rankwatch
from support.processes.users import node_directory

__all__ = ["node_directory"]

_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR",
    "MASTER_PORT", "TORCHELASTIC_RUN_ID", "RAY_JOB_ID", "KUBEFLOW_TRAINING_JOB_ID", "PMIX_NAMESPACE",
    "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NAME",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
    "RANKWATCH_DIR", "RANKWATCH_RUN", "RANKWATCH_DISABLE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[rankwatch.Run]:
    """A run that records below `tmp_path`. It ends after the test."""
    started = rankwatch.start(
        run="test", rank=0, world_size=1, directory=tmp_path, flight_recorder=False, collectives=False
    )
    assert isinstance(started, rankwatch.Run)
    yield started
    started.finish()
