"""The directory of the bundles: made, bounded, swept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rankwatch_agent.incidents.store import BundleStore
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from support.incidents.incidents import incident


def store(path: Path, most: int = 3) -> BundleStore:
    """An open store."""
    made = BundleStore(path, max_bundles=most)
    made.open()
    return made


def test_the_directory_is_made_for_the_agent_alone_where_its_parent_is(tmp_path: Path) -> None:
    """Where that is missing nobody has given evidence a place."""
    store(tmp_path / "evidence")
    assert stat.S_IMODE((tmp_path / "evidence").stat().st_mode) == 0o700
    with pytest.raises(NotApplicable, match="has no place"):
        store(tmp_path / "missing" / "evidence")
    assert not (tmp_path / "missing").exists()


def test_a_directory_of_no_use_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A file in its place; one that is read-only is tried with the agent as a whole."""
    (tmp_path / "file").touch()
    with pytest.raises(CollectError, match=r"could not create .*file: File exists"):
        store(tmp_path / "file")


def test_the_oldest_bundles_give_way(tmp_path: Path) -> None:
    """Thousands of incidents leave as many bundles as are to be kept."""
    bundles = store(tmp_path, most=3)
    for second in range(1000):
        bundles.make_room()
        bundles.complete(bundles.begin(incident([]), wall=1e9 + second))
        assert len(list(tmp_path.iterdir())) <= 3
    assert bundles.bundles() == [f"20010909T0203{second}Z-job-stall" for second in (17, 18, 19)]


def test_two_incidents_of_one_second_have_a_bundle_each(tmp_path: Path) -> None:
    """The second name ends in a number."""
    bundles = store(tmp_path)
    names = [bundles.complete(bundles.begin(incident([]), wall=0.0)).name for _ in range(2)]
    assert names == ["19700101T000000Z-job-stall", "19700101T000000Z-job-stall-2"]


def test_a_run_s_name_cannot_lead_elsewhere(tmp_path: Path) -> None:
    """It is the name of a directory that a training process made."""
    bundles = store(tmp_path / "evidence")
    path = bundles.complete(bundles.begin(incident([], run="../../x\n" + "y" * 300), wall=0.0))
    assert path.parent == tmp_path / "evidence"
    assert path.name == f"19700101T000000Z-.._.._x_{'y' * 92}-stall"


def test_what_a_killed_agent_left_half_written_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Files of others stay, and are no bundles."""
    for name in (".partial-20010909T014640Z-job-stall", "20010909T014640Z-job-stall", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    bundles = store(tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["20010909T014640Z-job-stall", "notes"]
    assert bundles.bundles() == ["20010909T014640Z-job-stall"]
    partial = bundles.begin(incident([]), wall=0.0)
    bundles.open()
    assert partial.exists()
    bundles.abandon(partial)
    assert not partial.exists()
