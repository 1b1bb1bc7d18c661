"""What a checkpoint of each framework must have besides whole files: what is written last, and by whom."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rankwatch.checkpoint_files import manifest
from rankwatch.checkpoint_files.names import is_temporary, step_of
from rankwatch.checkpoint_files.reading import OpenFile, Pace, ReadError
from rankwatch.checkpoint_files.result import Damage, Verification

TRAINER_STATE = "trainer_state.json"
_UNFINISHED = "checkpoint-is-incomplete.txt"
TRACKER = "latest_checkpointed_iteration.txt"
_HF_NAME = re.compile(r"checkpoint-\d+")
_HF_FILES = ("optimizer.pt", "scheduler.pt", "optimizer.bin", "training_args.bin", "rng_state.pth")
_WEIGHTS = re.compile(
    r"(model|adapter_model|pytorch_model|diffusion_pytorch_model|tf_model|flax_model).*\.\w+"
)
_OF_RANKS = (
    re.compile(r"(?:.*/)?rng_state_(\d+)\.pth"),
    re.compile(r"(?:.*/)?(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_\d+_(?:optim|model)_states\.pt"),
    re.compile(r"(?:.*/)?mp_rank_(\d+)_model_states\.pt"),
    re.compile(r"(?:.*/)?random_states_(\d+)\.pkl"),
)
"""Files that every rank writes one of, numbered from 0."""


def check_layout(root: Path, names: list[str], found: Verification, pace: Pace) -> None:
    """Add what the framework's order of writing says about a folder."""
    if found.step is None:
        found.step = step_of(root.name)
    if not names:
        found.problem(".", Damage.UNFINISHED, "the folder is empty")
    if is_temporary(root.name):
        found.problem(".", Damage.UNFINISHED, "its name is one that its writer gives until it has finished")
    if manifest.parts_in(names) and manifest.NAME not in names:
        detail = "it is not there, though ranks have written their parts: the save has not finished"
        found.problem(manifest.NAME, Damage.UNFINISHED, detail)
    if _UNFINISHED in names:
        found.problem(_UNFINISHED, Damage.UNFINISHED, "it marks a save that has not finished")
    if _HF_NAME.fullmatch(root.name) or TRAINER_STATE in names:
        _check_hugging_face(root, names, found, pace)
    _check_megatron(root, names, found, pace)
    if any("zero_pp_rank_" in name or "_model_states.pt" in name for name in names):
        found.format = "deepspeed"
    _check_ranks(names, found)


def _check_hugging_face(root: Path, names: list[str], found: Verification, pace: Pace) -> None:
    found.format = "hugging face"
    if TRAINER_STATE not in names:
        if any(name in names for name in _HF_FILES) or any(_WEIGHTS.fullmatch(name) for name in names):
            detail = "it is not there, and is written last: the save has not finished"
            found.problem(TRAINER_STATE, Damage.UNFINISHED, detail)
        return
    state = read_json(root, TRAINER_STATE, pace)
    step = state.get("global_step") if isinstance(state, dict) else None
    if type(step) is not int:
        found.problem(TRAINER_STATE, Damage.MALFORMED, "it says no global_step")
    elif found.step is not None and step != found.step:
        found.problem(
            TRAINER_STATE, Damage.MALFORMED, f"it is of step {step}, the folder of step {found.step}"
        )
    else:
        found.step = step
    if not any(_WEIGHTS.fullmatch(name.rpartition("/")[2]) for name in names) and not any(
        "/" in name for name in names
    ):
        found.problem("model.safetensors", Damage.MISSING, "no weights lie in the folder")
    if "optimizer.pt" in names and "scheduler.pt" not in names:
        found.problem("scheduler.pt", Damage.MISSING, "it is not there, though optimizer.pt is")
    if "scheduler.pt" in names and not any(name.startswith(("optimizer", "global_step")) for name in names):
        found.problem("optimizer.pt", Damage.MISSING, "it is not there, though scheduler.pt is")


def _check_megatron(root: Path, names: list[str], found: Verification, pace: Pace) -> None:
    """Megatron writes the tracker file beside the folder after the folder is whole."""
    last = read_text(root.parent, TRACKER, pace).strip()
    if not last and "integrity.json" not in names:
        return
    found.format = "megatron"
    if last.isdigit() and found.step is not None and found.step > int(last[:18]):
        detail = f"{TRACKER} still says {int(last[:18])}: the save has not finished"
        found.problem(".", Damage.UNFINISHED, detail)


def _check_ranks(names: list[str], found: Verification) -> None:
    """A file that each rank writes: the numbers have no gap."""
    for pattern in _OF_RANKS:
        ranks = {int(match[1]): name for name in names if (match := pattern.fullmatch(name))}
        for rank in sorted(set(range(max(ranks, default=0))) - set(ranks))[:1000]:
            highest = ranks[max(ranks)]
            found.problem(highest, Damage.MISSING, f"that of rank {rank} is not there")


def read_json(root: Path, name: str, pace: Pace) -> Any:
    """A small JSON file of a checkpoint; None if it is not there or none."""
    try:
        return json.loads(read_text(root, name, pace))
    except (ValueError, RecursionError):
        return None


def read_text(root: Path, name: str, pace: Pace) -> str:
    """A small text file; empty if it cannot be read."""
    try:
        with OpenFile(root / name, root, pace) as file:
            return file.read(0, min(file.size, 64 << 20)).decode("utf-8", "replace")
    except ReadError:
        return ""
