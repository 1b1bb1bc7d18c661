"""The folder of a bundle and the directory of all: limits, full disks, cleanup, and what a rank wrote."""

from __future__ import annotations

import os
import resource
import socket
import stat
from pathlib import Path

import pytest

from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.bundle import BundleFolder, EvidenceError, copy_file
from rankwatch_agent.incidents.evidence import BundleStore
from support.agent.process import ManualClock
from support.incidents.incidents import incident, small_disk


def fault(folder: BundleFolder, name: str, *chunks: bytes) -> EvidenceFault:
    """Why a file cannot be written; it is not there."""
    with pytest.raises(EvidenceError) as raised:
        folder.write(name, chunks)
    assert not (folder.path / name).exists()
    return raised.value.fault


def test_files_belong_to_the_owner_only(tmp_path: Path) -> None:
    """Files and folders of a bundle have no permission for others, whatever the umask."""
    before = os.umask(0)
    try:
        BundleFolder(tmp_path, max_bytes=1000).write("a/b/file", [b"one", b"two"])
    finally:
        os.umask(before)
    assert (tmp_path / "a/b/file").read_bytes() == b"onetwo"
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b", "a/b/file")]
    assert modes == [0o700, 0o700, 0o600]


def test_file_over_the_limit(tmp_path: Path) -> None:
    """A file that does not fit is left out and frees its room. A quarter is reserved for the last files."""
    folder = BundleFolder(tmp_path, max_bytes=400)
    assert fault(folder, "large", b"x" * 299, b"xx") is EvidenceFault.SIZE
    folder.write("fits", [b"x" * 300])
    assert fault(folder, "more", b"x") is EvidenceFault.SIZE
    folder.use_reserve()
    folder.write("last", [b"x" * 100])
    assert (folder.free_bytes, [each.path for each in folder.files]) == (0, ["fits", "last"])


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Neither an existing file nor the target of a link."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "file").write_text("mine")
    for name in ("link", "file"):
        with pytest.raises(EvidenceError, match="File exists"):
            BundleFolder(tmp_path, max_bytes=1000).write(name, [b"x"])
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "target").exists()


def test_nothing_is_written_after_the_deadline(tmp_path: Path) -> None:
    """A slow disk must not hold the agent."""
    clock = ManualClock()
    folder = BundleFolder(tmp_path, max_bytes=1000, ends=clock.now + 1.0, monotonic=clock)
    folder.write("in time", [b"x"])
    clock.now += 2.0
    assert fault(folder, "late", b"x") is EvidenceFault.WRITE


@pytest.mark.process
def test_free_space_of_a_small_disk(tmp_path: Path) -> None:
    """A twentieth stays free, however large a bundle may be."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        folder = BundleFolder(disk, max_bytes=1 << 30)
        chunk = bytes(64 << 10)
        assert fault(folder, "large", *[chunk] * 16) is EvidenceFault.NO_SPACE
        folder.write("fits", [chunk] * 15)
        status = os.statvfs(disk)
        assert status.f_bavail * status.f_frsize >= 0.05 * (1 << 20)
        assert fault(folder, "more", chunk) is EvidenceFault.NO_SPACE


def test_refused_write_leaves_no_file(tmp_path: Path) -> None:
    """The disk may fill up after the check, or a quota may apply."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        found = fault(BundleFolder(tmp_path, max_bytes=1 << 20), "large", b"x" * 500, b"x" * 600)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found is EvidenceFault.NO_SPACE


def copy(source: Path, tmp_path: Path, *, max_bytes: int = 1000) -> bytes:
    """What arrives of a file."""
    folder = BundleFolder(tmp_path / "bundle", max_bytes=16 << 20)
    folder.path.mkdir()
    copy_file(source, folder, "copy", owner=os.geteuid(), fault=EvidenceFault.BLACK_BOX, max_bytes=max_bytes)
    return (folder.path / "copy").read_bytes()


def test_copy(tmp_path: Path) -> None:
    """A large file goes in pieces."""
    content = os.urandom(3 << 20)
    (tmp_path / "source").write_bytes(content)
    assert copy(tmp_path / "source", tmp_path, max_bytes=4 << 20) == content


@pytest.mark.parametrize("kind", ["link", "folder link", "fifo", "socket", "directory", "missing", "large"])
def test_refused_sources(tmp_path: Path, kind: str) -> None:
    """No link is followed, and nothing blocks."""
    run, secret = tmp_path / "run", tmp_path / "secret"
    for each in (run, secret):
        each.mkdir()
    (secret / "0.blackbox").write_text("secret")
    source = run / "0.blackbox"
    match kind:
        case "link":
            source.symlink_to(secret / "0.blackbox")
        case "folder link":
            run.rmdir()
            run.symlink_to(secret)
        case "fifo":
            os.mkfifo(source)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(source))
        case "directory":
            source.mkdir()
        case "large":
            source.write_bytes(b"x" * 1001)
    with pytest.raises(EvidenceError) as raised:
        copy(source, tmp_path)
    assert raised.value.fault is EvidenceFault.BLACK_BOX
    assert not (tmp_path / "bundle" / "copy").exists()


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
