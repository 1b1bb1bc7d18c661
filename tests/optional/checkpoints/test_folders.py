"""Folders of frameworks: what is written last, what every rank writes, and what may not be there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from rankwatch_checkpoints import (
    CheckpointError,
    CheckpointGoneError,
    Damage,
    ManifestWriter,
    Outcome,
    merge,
    verify,
)
from rankwatch_checkpoints.reading import Pace
from support.checkpoints import flip, save_distributed, state, write_safetensors


@pytest.fixture
def hugging_face(tmp_path: Path) -> Path:
    """As transformers 5.23 leaves it, made by hand."""
    folder = tmp_path / "checkpoint-40"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"w": ("F32", [2], b"12345678")})
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "rng_state_1.pth", "training_args.bin"):
        torch.save(state(20), folder / name)
    (folder / "config.json").write_text("{}")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 40}))
    return folder


def only(folder: Path) -> tuple[str, Damage]:
    (problem,) = verify(folder).problems
    return problem.file, problem.damage


def test_hugging_face(hugging_face: Path) -> None:
    found = verify(hugging_face)
    assert (found.outcome, found.format, found.step, found.files) == (Outcome.GOOD, "hugging face", 40, 8)


@pytest.mark.parametrize(
    ("name", "content", "damage", "outcome"),
    [
        ("trainer_state.json", None, Damage.UNFINISHED, Outcome.INCOMPLETE),
        ("checkpoint-is-incomplete.txt", "", Damage.UNFINISHED, Outcome.INCOMPLETE),
        ("trainer_state.json", '{"global_step": 30}', Damage.MALFORMED, Outcome.DAMAGED),
    ],
)
def test_hugging_face_out_of_step(
    hugging_face: Path, name: str, content: str | None, damage: Damage, outcome: Outcome
) -> None:
    """Without the file that is written last, marked as incomplete, and of another step than its name says."""
    if content is None:
        (hugging_face / name).unlink()
    else:
        (hugging_face / name).write_text(content)
    assert only(hugging_face) == (name, damage)
    assert verify(hugging_face).outcome is outcome


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state_0.pth", "model.safetensors"])
def test_hugging_face_without_a_file(hugging_face: Path, name: str) -> None:
    (hugging_face / name).unlink()
    assert only(hugging_face)[1] is Damage.MISSING


@pytest.mark.parametrize(("encoding", "outcome"), [("utf-8-sig", Outcome.GOOD), ("utf-16", Outcome.DAMAGED)])
def test_hugging_face_in_an_encoding(hugging_face: Path, encoding: str, outcome: Outcome) -> None:
    """JSON is UTF-8. A confined child can load no other: it has no access to the modules of encodings."""
    (hugging_face / "trainer_state.json").write_text(json.dumps({"global_step": 40}), encoding=encoding)
    assert verify(hugging_face).outcome is outcome


def test_flipped_optimizer(hugging_face: Path) -> None:
    flip(hugging_face / "optimizer.pt", 8 * 3000)
    problem = verify(hugging_face).problems[0]
    assert (problem.file, problem.tensor != "") == ("optimizer.pt", True)


def test_sharded_model_in_a_folder(hugging_face: Path) -> None:
    """accelerate keeps FSDP's shards in folders of torch.distributed.checkpoint within the checkpoint."""
    (hugging_face / "model.safetensors").unlink()
    save_distributed(hugging_face / "pytorch_model_fsdp_0")
    assert verify(hugging_face).outcome is Outcome.GOOD
    flip(hugging_face / "pytorch_model_fsdp_0" / "__0_0.distcp", 8 * 3000)
    assert only(hugging_face) == ("pytorch_model_fsdp_0/__0_0.distcp", Damage.FLIPPED)


@pytest.fixture
def megatron(tmp_path: Path) -> Path:
    folder = save_distributed(tmp_path / "run" / "iter_0000200")
    torch.save(state(20), folder / "common.pt")
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    digests = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}
    (folder / "integrity.json").write_text(json.dumps({"algorithm": "sha256", "files": digests}))
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("200")
    return folder


def test_megatron(megatron: Path) -> None:
    """By its own digests, also when the folder above is given and its tracker file names the iteration."""
    for path in (megatron, megatron.parent):
        found = verify(path)
        assert (found.outcome, found.format, found.step) == (Outcome.GOOD, "megatron", 200)
        assert found.path == megatron


def test_megatron_names_the_tensor(megatron: Path) -> None:
    """The digest says that a shard differs, the shard's own checksums say where."""
    flip(megatron / "common.pt", 8 * 1200)
    (problem,) = verify(megatron).problems
    assert (problem.file, problem.damage) == ("common.pt", Damage.FLIPPED)
    assert problem.tensor
    assert "sha256 differs" in problem.detail


def test_megatron_shard_names_the_tensor(megatron: Path) -> None:
    flip(megatron / "__0_0.distcp", 8 * 3000)
    assert {(each.file, bool(each.tensor)) for each in verify(megatron).problems} == {("__0_0.distcp", True)}


def test_megatron_metadata_is_covered(megatron: Path) -> None:
    """With digests no flipped bit of `.metadata` stays unseen."""
    for bit in range(0, 8 * (megatron / ".metadata").stat().st_size, 331):
        flip(megatron / ".metadata", bit)
        assert verify(megatron).outcome is Outcome.DAMAGED
        flip(megatron / ".metadata", bit)


def test_megatron_newer_than_its_tracker(megatron: Path) -> None:
    (megatron.parent / "latest_checkpointed_iteration.txt").write_text("100")
    assert only(megatron) == (".", Damage.UNFINISHED)


def test_deepspeed(tmp_path: Path) -> None:
    """Every rank writes its part of the optimizer; `latest` names the folder."""
    folder = tmp_path / "global_step30"
    folder.mkdir()
    for name in (
        "mp_rank_00_model_states.pt",
        *(f"zero_pp_rank_{n}_mp_rank_00_optim_states.pt" for n in range(3)),
    ):
        torch.save(state(20), folder / name)
    (tmp_path / "latest").write_text("global_step30")
    found = verify(tmp_path)
    assert (found.outcome, found.format, found.step) == (Outcome.GOOD, "deepspeed", 30)
    (folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "rank 1 is not there" in verify(tmp_path).problems[0].detail
    (tmp_path / "latest").write_text("global_step31")
    with pytest.raises(CheckpointError, match="latest names global_step31, which is not there"):
        verify(tmp_path)


def test_a_folder_of_checkpoints(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / f"step-{step}").mkdir()
    with pytest.raises(CheckpointError, match="it holds 2 checkpoints"):
        verify(tmp_path)


@pytest.mark.parametrize("name", ["step-5.partial", "step-5.tmp", ".tmp-step-5"])
def test_temporary_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    torch.save(state(5), tmp_path / name / "a.pt")
    assert verify(tmp_path / name).outcome is Outcome.INCOMPLETE


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "step-5").mkdir()
    assert verify(tmp_path / "step-5").outcome is Outcome.INCOMPLETE


def test_foreign_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert verify(tmp_path).outcome is Outcome.UNVERIFIABLE


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointGoneError, match="it is not there"):
        verify(tmp_path / "step-9")


def test_pipe_device_and_unreadable(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="neither a file nor a folder"):
            verify(path)


def test_a_pipe_and_links_in_a_folder(tmp_path: Path) -> None:
    """Each gets a sentence; none is opened or followed."""
    folder = tmp_path / "step-3"
    folder.mkdir()
    torch.save(state(5), folder / "a.pt")
    os.mkfifo(folder / "b.pt")
    torch.save(state(5), tmp_path / "outside.pt")
    (folder / "c.pt").symlink_to(tmp_path / "outside.pt")
    (folder / "d").symlink_to(tmp_path)
    (folder / "inside.pt").symlink_to(folder / "a.pt")
    found = verify(folder)
    assert found.outcome is Outcome.GOOD
    assert {each.file: each.reason.partition(",")[0] for each in found.unchecked} == {
        "b.pt": "it is no regular file",
        "c.pt": "it is a symbolic link that leads out of the checkpoint",
        "d": "it is a symbolic link that leads out of the checkpoint",
    }


def test_deleted_while_it_is_read(tmp_path: Path) -> None:
    """A checkpoint that retention deletes is gone, not damaged."""
    folder = save_distributed(tmp_path / "step-1", elements=3_000_000)
    with pytest.raises(CheckpointGoneError, match="deleted while it was read"):
        verify(folder, progress=lambda _: shutil.rmtree(folder, ignore_errors=True))


def test_written_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "step-1.pt"
    torch.save({"w": torch.ones(10_000_000)}, path)
    found = verify(path, progress=lambda _: os.utime(path, ns=(1, 1)))
    assert found.outcome is Outcome.INCOMPLETE


def test_saved_again_while_it_is_read(tmp_path: Path) -> None:
    """Bytes of two saves do not fit each other. That is no damage, and no alarm."""
    path = tmp_path / "last.pt"
    torch.save({"w": torch.zeros(10_000_000)}, path)

    def save_again(_: int) -> None:
        torch.save({"w": torch.ones(10_000_000)}, path)

    found = verify(path, progress=save_again)
    assert [each.damage for each in found.problems] == [Damage.UNFINISHED]


def test_half_deleted_while_it_is_read(tmp_path: Path) -> None:
    """A clean-up on a slow file system takes one file after the other."""
    folder = tmp_path / "step-1"
    folder.mkdir()
    with ManifestWriter(folder, step=1) as manifest:
        for name in ("a.pt", "b.pt"):
            with manifest.open(name) as file:
                torch.save({"w": torch.zeros(10_000_000)}, file)
    merge(folder, 1)
    found = verify(folder, progress=lambda _: (folder / "b.pt").unlink(missing_ok=True))
    assert [each.damage for each in found.problems] == [Damage.UNFINISHED]


def test_pace() -> None:
    """Reading sleeps so that the rate is kept, and a pause saves up no more than a second's bytes."""
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(1000.0, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        pace.add(500)
    assert sum(slept) == pytest.approx(5.0)
    now[0] += 60
    slept.clear()
    for _ in range(6):
        pace.add(500)
    assert sum(slept) == pytest.approx(2.0)
