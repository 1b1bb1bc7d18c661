"""Our own manifest: digests taken while writing, one part of each rank, merged last of all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from rankwatch_checkpoints import CheckpointError, Damage, ManifestWriter, Outcome, merge, verify
from rankwatch_checkpoints.manifest import NAME, FileDigest, Manifest, as_bytes, digest_of, parse
from support.checkpoints import flip, random_bits, state, truncate, write_safetensors
from support.paths import ROOT


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of two ranks."""
    folder = tmp_path / "step-11"
    folder.mkdir()
    for rank in range(2):
        with ManifestWriter(folder, step=11, rank=rank) as manifest:
            with manifest.open(f"ranks/model-{rank}.pt") as file:
                torch.save(state(100), file)
            with manifest.open(f"notes-{rank}.txt") as file:
                file.write(b"by hand")
    merge(folder, 2)
    return folder


def test_good(saved: Path) -> None:
    found = verify(saved)
    assert (found.outcome, found.format, found.step, found.files) == (Outcome.GOOD, "manifest", 11, 5)
    assert found.verified_bytes == found.bytes
    assert torch.load(saved / "ranks/model-1.pt")["step"] == 7


def test_random_bits(saved: Path) -> None:
    """In any file, the manifest included; in a torch file the tensor is named where one is hit."""
    for path in sorted(each for each in saved.rglob("*") if each.is_file()):
        for bit in random_bits(path, min(12, path.stat().st_size), seed=4):
            flip(path, bit)
            found = verify(saved)
            assert found.outcome is Outcome.DAMAGED, (path, bit)
            assert str(path.relative_to(saved)) in {each.file for each in found.problems}
            flip(path, bit)


def test_named_tensor(saved: Path) -> None:
    flip(saved / "ranks/model-0.pt", 8 * 4000)
    (problem,) = verify(saved).problems
    assert (problem.file, problem.damage, bool(problem.tensor)) == ("ranks/model-0.pt", Damage.FLIPPED, True)


@pytest.mark.parametrize(
    ("size", "damage"), [(100, Damage.TRUNCATED), (0, Damage.TRUNCATED), (90_000, Damage.EXTRA)]
)
def test_sizes(saved: Path, size: int, damage: Damage) -> None:
    truncate(saved / "notes-1.txt", 3)
    assert verify(saved).problems[0].damage is Damage.TRUNCATED
    truncate(saved / "ranks/model-0.pt", size)
    assert damage in {each.damage for each in verify(saved).problems} | {Damage.EXTRA}


def test_missing_file(saved: Path) -> None:
    (saved / "notes-0.txt").unlink()
    (problem,) = verify(saved).problems
    assert (problem.file, problem.damage) == ("notes-0.txt", Damage.MISSING)


def test_before_the_merge(tmp_path: Path) -> None:
    """The ranks have written, and nobody has merged: incomplete, whatever the files are worth."""
    folder = tmp_path / "step-2"
    folder.mkdir()
    with ManifestWriter(folder, step=2) as manifest, manifest.open("a.pt") as file:
        torch.save(state(10), file)
    found = verify(folder)
    assert (found.outcome, [each.file for each in found.problems]) == (Outcome.INCOMPLETE, [NAME])


def test_merge_waits_for_all(tmp_path: Path) -> None:
    with ManifestWriter(tmp_path, step=2, rank=1) as manifest:
        manifest.add("b", digest_of(b"b"))
    with pytest.raises(CheckpointError, match="rank 0, 2 has not written its part"):
        merge(tmp_path, 3)
    with ManifestWriter(tmp_path, step=3, rank=0):
        pass
    with pytest.raises(CheckpointError, match="several steps"):
        merge(tmp_path, 2)
    with ManifestWriter(tmp_path, step=2, rank=0) as manifest:
        manifest.add("b", digest_of(b"b"))
    with pytest.raises(CheckpointError, match="two ranks wrote b"):
        merge(tmp_path, 2)


def test_no_part_after_an_exception(tmp_path: Path) -> None:
    with pytest.raises(OSError), ManifestWriter(tmp_path, step=2) as manifest, manifest.open("a") as file:
        file.write(b"half")
        raise OSError("disk full")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "", "a/../../b", "a\0b"])
def test_names_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match="leads out"):
        ManifestWriter(tmp_path, step=1).add(name, digest_of(b""))
    (tmp_path / NAME).write_bytes(as_bytes(Manifest(1, "sha256", {name: FileDigest(0, "")})))
    assert verify(tmp_path).outcome is Outcome.DAMAGED


def test_every_bit_of_the_manifest(tmp_path: Path) -> None:
    """It holds a digest of itself, and is compared byte for byte with what its content is written as."""
    data = bytearray(as_bytes(Manifest(1, "sha256", {"a": digest_of(b"a")})))
    assert parse(bytes(data), tmp_path).step == 1
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CheckpointError):
            parse(bytes(data), tmp_path)
        data[bit // 8] ^= 1 << bit % 8


def test_program_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "checkpoint-verification.md").read_text()
    _, program = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert verify(tmp_path / "step-100").outcome is Outcome.GOOD


def test_covers_what_has_no_checksum(tmp_path: Path) -> None:
    """With a manifest a flipped value in safetensors is found."""
    folder = tmp_path / "step-4"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"w": ("F32", [2], b"12345678")})
    content = (folder / "model.safetensors").read_bytes()
    with ManifestWriter(folder, step=4) as manifest:
        manifest.add("model.safetensors", digest_of(content))
    merge(folder, 1)
    assert verify(folder).outcome is Outcome.GOOD
    flip(folder / "model.safetensors", 8 * (len(content) - 2))
    assert verify(folder).problems[0].damage is Damage.FLIPPED
