"""The directory of the bundles: creation, limits, cleanup."""

from __future__ import annotations

import stat
from pathlib import Path

from rankwatch_agent.incidents.evidence import BundleStore
from support.incidents.incidents import incident


def store(path: Path, most: int = 3) -> BundleStore:
    """An open store."""
    made = BundleStore(path, max_bundles=most)
    made.open()
    return made


def test_directory_is_created_privately(tmp_path: Path) -> None:
    """Nobody but the agent looks into it; test_incidents.py holds which directories cannot be used."""
    store(tmp_path / "evidence")
    assert stat.S_IMODE((tmp_path / "evidence").stat().st_mode) == 0o700


def test_oldest_bundles_are_removed(tmp_path: Path) -> None:
    """Thousands of incidents leave only as many bundles as configured."""
    bundles = store(tmp_path, most=3)
    for second in range(1000):
        bundles.make_room()
        bundles.complete(bundles.begin(incident([]), wall=1e9 + second))
        assert len(list(tmp_path.iterdir())) <= 3
    assert bundles.bundles() == [f"20010909T0203{second}Z-job-stall" for second in (17, 18, 19)]


def test_bundles_of_two_users(tmp_path: Path) -> None:
    """A user with many incidents removes their own bundles, also after a restart of the agent."""

    def add(second: int, owner: int) -> None:
        bundles = store(tmp_path, most=3)
        bundles.make_room()
        partial = bundles.begin(incident([], run=f"run{owner}"), wall=1e9 + second)
        (partial / "manifest.json").write_text(f'{{"format": 1, "owner": {owner}}}')
        bundles.complete(partial)

    add(0, owner=1)
    for second in range(1, 50):
        add(second, owner=2)
    assert [name.split("-")[1] for name in store(tmp_path).bundles()] == ["run1", "run2", "run2"]


def test_damaged_manifest(tmp_path: Path) -> None:
    """Bundles without an owner are removed like those of one user."""
    bundles = store(tmp_path, most=2)
    for second, text in enumerate((b'{"x":' * 5000, b"", b"\xff", b'{"owner": "x"}', b"[]")):
        bundles.make_room()
        partial = bundles.begin(incident([]), wall=1e9 + second)
        (partial / "manifest.json").write_bytes(text)
        bundles.complete(partial)
    assert len(bundles.bundles()) == 2


def test_two_bundles_in_one_second(tmp_path: Path) -> None:
    """The second name ends in a number."""
    bundles = store(tmp_path)
    names = [bundles.complete(bundles.begin(incident([]), wall=0.0)).name for _ in range(2)]
    assert names == ["19700101T000000Z-job-stall", "19700101T000000Z-job-stall-2"]


def test_unsafe_run_name(tmp_path: Path) -> None:
    """A training process chooses the name, which becomes a directory."""
    bundles = store(tmp_path / "evidence")
    path = bundles.complete(bundles.begin(incident([], run="../../x\n" + "y" * 300), wall=0.0))
    assert path.parent == tmp_path / "evidence"
    assert path.name == f"19700101T000000Z-.._.._x_{'y' * 92}-stall"


def test_partial_bundles_are_removed(tmp_path: Path) -> None:
    """Files of others stay, and are not listed as bundles."""
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
