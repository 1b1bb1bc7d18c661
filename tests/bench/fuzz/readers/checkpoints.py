"""Checkpoints of all kinds, written by what writes them; and the manifest that lies beside ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from rankwatch_checkpoints import Outcome, newest, verify
from rankwatch_checkpoints.manifest import CheckpointError, parse

from ..reader import Document, Reader, document, parsing, single

_ELEMENTS = 12


def write(base: Path) -> None:
    """One of each kind. Needs torch."""
    import torch

    from rankwatch_checkpoints import ManifestWriter, merge
    from support.checkpoints import save_distributed, state, write_safetensors

    save_distributed(base / "distributed" / "step-7", elements=_ELEMENTS)
    for name in (
        "single/model.pt",
        "megatron/iter_0000007/mp_rank_00/model_optim_rng.pt",
        "deepspeed/global_step7/mp_rank_00_model_states.pt",
    ):
        (base / name).parent.mkdir(parents=True)
        torch.save(state(_ELEMENTS), base / name)
    torch.save(state(_ELEMENTS), base / "single/old.pt", _use_new_zipfile_serialization=False)
    (base / "megatron" / "latest_checkpointed_iteration.txt").write_text("7")
    (base / "deepspeed" / "latest").write_text("global_step7")
    tensors = {"a.weight": ("F32", [2, 3], bytes(24)), "b.bias": ("BF16", [4], bytes(8))}
    folder = base / "transformers" / "checkpoint-7"
    folder.mkdir(parents=True)
    weights = {}
    for number, name in enumerate(tensors, 1):
        file = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / file, {name: tensors[name]})
        weights[name] = file
    index = {"metadata": {"total_size": 32}, "weight_map": weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 7, "log_history": []}))
    (folder / "config.json").write_text("{}")
    torch.save(state(_ELEMENTS), folder / "optimizer.pt")
    torch.save({"cpu": torch.zeros(4)}, folder / "rng_state_0.pth")
    folder = base / "manifest" / "step-11"
    folder.mkdir(parents=True)
    for rank in range(2):
        with (
            ManifestWriter(folder, step=11, rank=rank) as manifest,
            manifest.open(f"model-{rank}.pt") as file,
        ):
            torch.save(state(_ELEMENTS), file)
    merge(folder, 2)


@cache
def _checkpoints(base: Path) -> list[Document]:
    """In a process of its own: torch takes much memory, and threads that do not survive a fork."""
    folder = base / "checkpoints"
    folder.mkdir()
    code = "import pathlib, sys; from bench.fuzz.readers import checkpoints as made"
    code += "; made.write(pathlib.Path(sys.argv[1]))"
    tests = str(Path(__file__).parents[3])
    env = {**os.environ, "PYTHONPATH": tests, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env=env)
    return [document(each) for each in sorted(folder.iterdir())]


def _verify(folder: Path) -> None:
    """Each checkpoint in the folder, and the folder itself."""
    for each in (folder, *(each for each in folder.iterdir() if each.is_dir() or each.suffix == ".pt")):
        try:
            found = verify(each)
        except CheckpointError:
            continue
        assert found.outcome in Outcome
        json.dumps(found.as_json())


def _newest(folder: Path) -> None:
    newest(folder)


def _manifests(base: Path) -> list[Document]:
    files = next(each.files for each in _checkpoints(base) if any("step-11" in name for name in each.files))
    return single(*(content for name, content in files.items() if name.endswith(".json")))


READERS = (
    Reader("checkpoint verify", _checkpoints, _verify, share=10),
    Reader("checkpoint newest", _checkpoints, _newest, share=4),
    Reader(
        "manifest",
        _manifests,
        parsing(lambda data: parse(data, Path("manifest"))),
        (CheckpointError,),
        share=3,
    ),
)
