"""Lightning with manual optimization below DistributedDataParallel, on two gloo ranks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from rankwatch.blackbox.layout import RecordKind
from support.frameworks.jobs import RANKS, ZERO, run

pytest.importorskip("lightning.pytorch")
pytestmark = [pytest.mark.frameworks, pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(300)]


def test_manual_optimization(tmp_path: Path) -> None:
    """One step for each call of `training_step`, in which both networks have forward, backward and optimizer
    phases that follow each other: DistributedDataParallel's forward pass contains them all."""
    job = run("lightning_manual.py", tmp_path, ZERO)
    for rank in range(RANKS):
        assert job.steps(rank) == list(range(1, job.wrote(rank) + 1))
        assert job.now(rank).errors == 0
        records = job.records(rank)
        assert all(each.start <= each.end for each in records)
        phases = sorted(
            (each.start, each.end, each.name) for each in records if each.kind == RecordKind.PHASE
        )
        for step in (each for each in records if each.kind == RecordKind.STEP):
            inside = [each for each in phases if step.start <= each[0] and each[1] <= step.end]
            assert [name for *_, name in inside] == ["data_wait", *("forward", "backward", "optimizer") * 2]
            assert all(before[1] <= after[0] for before, after in pairwise(inside))
