"""Files of torch.save: every flipped bit is found and named, whatever it hits."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from rankwatch_checkpoints import Damage, Outcome, Verification, verify, zip_layout
from rankwatch_checkpoints.reading import crc32_of_zeros
from support.checkpoints import flip, random_bits, state, truncate
from support.hostile_checkpoints import HUGE_BYTES, huge_zip


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.save(state(), tmp_path / "step_7.pt")
    return tmp_path / "step_7.pt"


def content_of(path: Path, entry: str) -> int:
    """Where the content of an entry begins."""
    with zipfile.ZipFile(path) as file:
        header = next(each for each in file.infolist() if each.filename.endswith(entry)).header_offset
    data = path.read_bytes()[header : header + 30]
    return header + 30 + int.from_bytes(data[26:28], "little") + int.from_bytes(data[28:30], "little")


def test_good(saved: Path) -> None:
    found = verify(saved)
    assert (found.outcome, found.format, found.step, found.tensors) == (Outcome.GOOD, "torch", 7, 4)
    assert found.verified_bytes == found.bytes == saved.stat().st_size


def test_torch_loads_what_is_found(saved: Path) -> None:
    """The reason for all this: torch.load takes the flipped bit without a word."""
    flip(saved, 8 * (content_of(saved, "data/2") + 10))
    torch.load(saved)
    found = verify(saved)
    (problem,) = found.problems
    assert (found.outcome, problem.damage, problem.tensor) == (
        Outcome.DAMAGED,
        Damage.FLIPPED,
        "model.layer.weight",
    )


def test_tied_weights_show_both_names(saved: Path) -> None:
    flip(saved, 8 * content_of(saved, "data/0"))
    assert verify(saved).problems[0].tensor == "model.embed.weight, model.head.weight"


def test_every_bit_of_a_small_file(tmp_path: Path) -> None:
    """Contents, local headers, padding, descriptors, directory and end records: all bits, in steps of 7."""
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(3), "b": torch.zeros(2)}, path)
    for bit in range(0, path.stat().st_size * 8, 7):
        flip(path, bit)
        assert verify(path).outcome is Outcome.DAMAGED, bit
        flip(path, bit)
    assert verify(path).outcome is Outcome.GOOD


def test_random_bits(saved: Path) -> None:
    for bit in random_bits(saved, 40, seed=1):
        flip(saved, bit)
        assert verify(saved).outcome is Outcome.DAMAGED, bit
        flip(saved, bit)


def test_truncations_name_the_tensor(saved: Path) -> None:
    """Without its end a zip file has no directory; the pickle at its start tells the names."""
    whole = saved.read_bytes()
    begin = content_of(saved, "data/2")
    for size in (1, 20, 100, begin + 5, len(whole) - 1, len(whole) - 22, len(whole) - 90, len(whole) - 300):
        saved.write_bytes(whole[:size])
        found = verify(saved)
        assert [each.damage for each in found.problems] == [Damage.TRUNCATED], size
        if size == begin + 5:
            assert found.problems[0].tensor == "model.layer.weight"


def test_bytes_behind_the_end(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b"\0")
    assert verify(saved).outcome is Outcome.DAMAGED


def test_without_checksums(tmp_path: Path) -> None:
    """A file of set_crc32_options(False) is not called good, and sizes are still held against the pickle."""
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    found = verify(tmp_path / "a.pt")
    assert found.outcome is Outcome.UNVERIFIABLE
    assert "without checksums" in found.unchecked[0].reason
    truncate(tmp_path / "a.pt", 3000)
    assert verify(tmp_path / "a.pt").outcome is Outcome.DAMAGED


def test_old_format(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    found = verify(tmp_path / "a.pth")
    assert found.outcome is Outcome.UNVERIFIABLE
    assert found.unchecked[0].reason == "it is a pickle of torch's old format, which has no checksum"


def test_hole(saved: Path) -> None:
    """A block that was never written reads as zeros: the detail says so where the file system knows."""
    torch.save({"big": torch.ones(1 << 20)}, saved)
    size, descriptor = saved.stat().st_size, os.open(saved, os.O_RDWR)
    content = saved.read_bytes()
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content[: 1 << 20], 0)
    os.pwrite(descriptor, content[2 << 20 :], 2 << 20)
    os.close(descriptor)
    assert saved.stat().st_size == size
    (problem,) = verify(saved).problems
    assert problem.tensor == "big"
    assert problem.damage in (Damage.MISSING, Damage.FLIPPED)


def compressed(path: Path, *contents: tuple[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in contents:
            file.writestr(name, content)


def test_other_writers(tmp_path: Path) -> None:
    """A compressed zip file of another writer is verified by its CRCs."""
    path = tmp_path / "a.pt"
    compressed(path, ("a/data.pkl", b"N."), ("a/data/0", bytes(range(256)) * 40_000))
    assert verify(path).outcome is Outcome.GOOD
    flip(path, 8 * (content_of(path, "data/0") + 100))
    assert verify(path).problems[0].damage is Damage.FLIPPED


@pytest.mark.parametrize(
    ("at", "number", "detail"),
    [
        (24, 1 << 31, ""),  # larger than deflate can make it: refused without being read
        (42, 2, "overlaps"),
    ],
)
def test_wrong_entries(tmp_path: Path, at: int, number: int, detail: str) -> None:
    """The directory gives the last entry another size or place."""
    path = tmp_path / "a.pt"
    compressed(path, ("a", b"one" * 99), ("b", b"x" * 1000))
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, entry + at, number)
    path.write_bytes(data)
    (problem,) = verify(path).problems
    assert problem.damage is Damage.MALFORMED
    assert detail in problem.detail


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_names(tmp_path: Path) -> None:
    compressed(tmp_path / "a.pt", ("a/data/0", b"one"), ("a/data/0", b"two"))
    assert "two entries" in verify(tmp_path / "a.pt").problems[0].detail


def test_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    compressed(path, ("a", b"one" * 99))
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    found = verify(path)
    assert (found.outcome, found.unchecked[0].reason) == (Outcome.UNVERIFIABLE, "it is encrypted")


@pytest.mark.parametrize(
    "content", [b"", b"x", b"PK", b"PK\x03\x04", b"PK\x05\x06" + b"\0" * 18, b"\0" * 5000]
)
def test_foreign_content(tmp_path: Path, content: bytes) -> None:
    """Whatever a file holds, there is an answer."""
    (tmp_path / "a.pt").write_bytes(content)
    assert verify(tmp_path / "a.pt").outcome is not Outcome.GOOD


def test_fuzzed_directories(tmp_path: Path) -> None:
    """Random bytes in the directory and end records: an answer, never an exception."""
    import random

    path = tmp_path / "a.pt"
    compressed(path, ("a/data.pkl", b"N."), ("a/data/0", b"x" * 100))
    whole, dice = path.read_bytes(), random.Random(5)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 8)):
            data[dice.randrange(len(data) - 160, len(data))] = dice.choice((0, 1, 127, 255))
        path.write_bytes(data)
        assert isinstance(verify(path), Verification)


def test_zip64_entries(tmp_path: Path) -> None:
    """A file beyond 4 GiB, sparse so that it costs nothing, is read through its 64-bit records."""
    path = tmp_path / "a.pt"
    try:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a/data/0", b"first")
        with open(path, "r+b") as raw:
            raw.truncate(5 << 30)
        path.stat()
    except OSError as error:
        assert error.errno in (errno.EFBIG, errno.ENOSPC)
        pytest.skip("no room for a sparse file")
    assert verify(path).outcome is Outcome.DAMAGED


def test_zeros_have_a_checksum_without_being_read() -> None:
    """What zlib finds byte for byte is computed for any number of zeros at once."""
    for before in (b"", b"abc", b"\xff" * 9):
        for count in (0, 1, 2, 255, 4096, 1_000_003):
            expected = zlib.crc32(before + bytes(count))
            assert crc32_of_zeros(zlib.crc32(before), count) == expected, (before, count)


def test_sparse_file(tmp_path: Path) -> None:
    """Zeros that a copy has not written are as good as others. Those of 15 TB are not read for hours: the
    checksum of a hole is computed, and the one of the file decides."""
    path, read = tmp_path / "a.pt", []
    for crc, outcome in ((crc32_of_zeros(0, HUGE_BYTES - 1000), Outcome.GOOD), (1, Outcome.DAMAGED)):
        huge_zip(path, crc)
        assert verify(path, progress=read.append).outcome is outcome
    assert not read  # it is called for each 16 MiB
    torch.save({"w": torch.zeros(2 << 20), "b": torch.ones(2 << 20)}, path)
    with open(path, "r+b") as file:
        begin = content_of(path, "data/0")
        content = path.read_bytes()
        file.truncate(0)
        for at in (0, begin + (8 << 20)):
            file.seek(at)
            file.write(content[at : begin if not at else None])
    assert path.read_bytes() == content
    assert verify(path).outcome is Outcome.GOOD


def test_huge_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of more entries than are read is no damage, and nothing that could be called good."""
    monkeypatch.setattr(zip_layout, "_MOST_ENTRIES", 2)
    folder = tmp_path / "step-1"
    folder.mkdir()
    compressed(folder / "a.pt", ("a", b"1"), ("b", b"2"), ("c", b"3"))
    found = verify(folder)
    assert (found.outcome, found.unchecked[0].reason) == (
        Outcome.UNVERIFIABLE,
        "it has 3 entries, more than are read",
    )
