"""Boxes that lie: numbers of any size must cost neither time nor memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import PHASES
from rankwatch.identity import Identity
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.run.engine import diagnose_run


def lying(directory: Path, *, size: int, enqueued: int, oldest: float, members: str, world: int = 4) -> None:
    """Rank 0 of a run, with one group of these words."""
    writer = Writer(directory, Identity(run="job", world_size=world), phases=PHASES, capacity=256)
    integers = writer.integers
    integers[Now.GROUP_NAME] = writer.new_name("default_pg")
    integers[Now.GROUP_MEMBERS] = writer.new_name(members)
    integers[Now.GROUP_SIZE] = size
    integers[Now.GROUP_ENQUEUED] = enqueued
    integers[Now.GROUP_OPERATION] = writer.name_number("all_reduce")
    writer.floats[Now.GROUP_OLDEST] = oldest
    integers[Now.STEP] = -(2**62)
    integers[Now.CHECKPOINT_STEP] = 2**62
    writer.floats[Now.CHECKPOINT_ENDED] = 5.0
    integers[Now.GROUPS] = 1
    writer.unlock()


@pytest.mark.parametrize("enqueued", [0, 2**40, 2**63 - 1, -5])
@pytest.mark.parametrize("oldest", [0.0, 7.0, float("nan"), 1e300])
@pytest.mark.parametrize("members", ["0-3", "0-9999999", "5-7", "", "1-9999999/9999999"])
def test_any_number_of_collectives_and_members_gives_a_verdict(
    enqueued: int, oldest: float, members: str, tmp_path: Path
) -> None:
    """No rank is named that the box alone could name but falsely: at most those of its own group."""
    lying(tmp_path, size=4, enqueued=enqueued, oldest=oldest, members=members)
    assert set(diagnose_run(tmp_path, complete=True).ranks) <= {0, 1, 2, 3}


def test_a_world_of_billions_is_refused(tmp_path: Path) -> None:
    """Each of its ranks would be listed as missing."""
    lying(tmp_path, size=2**31 - 1, enqueued=3, oldest=7.0, members="", world=2**31 - 1)
    with pytest.raises(UserError, match="claims more than 131072 ranks"):
        diagnose_run(tmp_path)
