"""Small checkpoints that are made to exhaust whoever verifies them: an answer each, within bounds."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankwatch_checkpoints import Damage, Verification
from support import hostile_checkpoints
from support.checkpoints import state
from support.hostile_checkpoints import HOSTILE, HOSTILE_FILES

MEMORY_BYTES = 1000 << 20
NEWEST = """
import json, resource, sys
from rankwatch_checkpoints import newest
resource.setrlimit(resource.RLIMIT_CPU, (300, 300))
result = newest(sys.argv[1])
print(json.dumps([result.step, result.candidates, [each.reason for each in result.passed_over]]))
"""


@pytest.mark.process
@pytest.mark.parametrize("name", [*HOSTILE, *HOSTILE_FILES])
def test_newest_passes_over(tmp_path: Path, name: str) -> None:
    """In a trainer nothing limits memory, and nobody catches an exception: whatever an attacker puts beside
    the good checkpoint, that is found, and the reason for the other is one short line."""
    torch.save(state(5), tmp_path / "step-1.pt")
    hostile = tmp_path / ("step-2" if name in HOSTILE else "step-2.pt")
    (HOSTILE | HOSTILE_FILES)[name](hostile)
    try:
        done = subprocess.run(
            [sys.executable, "-c", NEWEST, str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
        )
        assert done.returncode == 0, done.stderr[-2000:]
        step, candidates, (reason,) = json.loads(done.stdout)
        assert (step, candidates) == (1, 2)
        assert len(reason) < 2000
        assert not any(each in reason for each in ("Error:", "MemoryError", "RecursionError")), reason
    finally:
        if name == "nested_folders":
            hostile_checkpoints.remove_nested(hostile)


def test_problems_without_number() -> None:
    """The agent reads 8 MiB of a result. Characters that take twelve bytes each in JSON, in texts without
    end, do not take more, and every problem is listed or counted."""
    found = Verification(Path("step-1"))
    for _ in range(5000):
        found.problem("\U0001f600" * 9000, Damage.FLIPPED, "\ud800" * 9000, "\U0001f600" * 9000)
        found.not_checked("\U0001f600" * 9000, "\ud800" * 9000)
    as_json = found.as_json()
    assert len(json.dumps(as_json)) < 8 << 20
    assert len(as_json["problems"]) + as_json["more_problems"] == 5000
    assert len(as_json["unchecked"]) + as_json["more_unchecked"] == 5000


def test_short_problems() -> None:
    """A thousand of the usual length are listed."""
    found = Verification(Path("step-1"))
    for each in range(1500):
        found.problem(
            f"__{each}_0.distcp", Damage.MISSING, "the file is not there", "model.layers.7.mlp.weight"
        )
    assert (len(found.problems), found.more_problems) == (1000, 500)
