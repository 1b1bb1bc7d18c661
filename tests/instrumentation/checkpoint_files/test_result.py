"""A result is small, whatever was found, and says how much it leaves out."""

from __future__ import annotations

import json
from pathlib import Path

from rankwatch.checkpoint_files import Damage, Verification


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
