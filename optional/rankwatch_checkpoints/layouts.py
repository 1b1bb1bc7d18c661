"""What a checkpoint of each framework must have besides whole files: what is written last, and by whom.

And what the names in and of a checkpoint say: its step, and if it is meant to be temporary.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from itertools import islice

from rankwatch_checkpoints import manifest
from rankwatch_checkpoints.reading import MOST_JSON_BYTES, ReadError, TooMuchError, parse_json
from rankwatch_checkpoints.result import MOST_PROBLEMS, CheckpointError, Damage, Verification
from rankwatch_checkpoints.tree import Tree

TRAINER_STATE = "trainer_state.json"
_UNFINISHED = "checkpoint-is-incomplete.txt"
TRACKER = "latest_checkpointed_iteration.txt"
_LONGEST_POINTER = 4096
_FIRST_NO_STEP = 10**18
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
_STEP_NAMES = (
    re.compile(r"step[-_=]?(\d+)"),
    re.compile(r"checkpoint[-_](\d+)"),
    re.compile(r"iter[-_](\d+)"),
    re.compile(r"global[-_]?step[-_=]?(\d+)"),
    re.compile(r"ckpt[-_](\d+)"),
    re.compile(r"(\d+)"),
    re.compile(r".*step[-_=]?(\d+)(?!.*step).*"),
    re.compile(r".*?[-_](\d+)"),
)
"""Of a name without its suffix, the surest first; `epoch=1-step=500.ckpt` is Lightning's."""
TORCH_SUFFIXES = frozenset({".pt", ".pth", ".ckpt", ".bin"})
_TEMPORARY = re.compile(
    r".*(\.tmp|\.partial|\.incomplete|\.part|\.writing|[-_.]tmp[-_]?\w*|\.temp)|\.tmp.*|tmp[-_].*"
)


def check_layout(tree: Tree, above: Tree | None, names: list[str], found: Verification) -> None:
    """Add what the framework's order of writing says about a folder, and about `above`, in which it lies."""
    name_of_folder = tree.path.name
    if found.step is None:
        found.step = step_of(name_of_folder)
    if not names:
        found.problem(".", Damage.UNFINISHED, "the folder is empty")
    if is_temporary(name_of_folder):
        found.problem(".", Damage.UNFINISHED, "its name is one that its writer gives until it has finished")
    if manifest.parts_in(names) and manifest.NAME not in names:
        detail = "it is not there, though ranks have written their parts: the save has not finished"
        found.problem(manifest.NAME, Damage.UNFINISHED, detail)
    if _UNFINISHED in names:
        found.problem(_UNFINISHED, Damage.UNFINISHED, "it marks a save that has not finished")
    if _HF_NAME.fullmatch(name_of_folder) or TRAINER_STATE in names:
        _check_hugging_face(tree, names, found)
    _check_megatron(above, names, found)
    if any("zero_pp_rank_" in name or "_model_states.pt" in name for name in names):
        found.format = "deepspeed"
    _check_ranks(names, found)


def _check_hugging_face(tree: Tree, names: list[str], found: Verification) -> None:
    found.format = "hugging face"
    if TRAINER_STATE not in names:
        if any(name in names for name in _HF_FILES) or any(_WEIGHTS.fullmatch(name) for name in names):
            detail = "it is not there, and is written last: the save has not finished"
            found.problem(TRAINER_STATE, Damage.UNFINISHED, detail)
        return
    _check_step(tree, found)
    if not any(_WEIGHTS.fullmatch(name.rpartition("/")[2]) for name in names) and not any(
        "/" in name for name in names
    ):
        found.problem("model.safetensors", Damage.MISSING, "no weights lie in the folder")
    if "optimizer.pt" in names and "scheduler.pt" not in names:
        found.problem("scheduler.pt", Damage.MISSING, "it is not there, though optimizer.pt is")
    if "scheduler.pt" in names and not any(name.startswith(("optimizer", "global_step")) for name in names):
        found.problem("optimizer.pt", Damage.MISSING, "it is not there, though scheduler.pt is")


def _check_step(tree: Tree, found: Verification) -> None:
    try:
        step = read_step(tree)
    except TooMuchError as error:
        found.not_checked(TRAINER_STATE, str(error))
        return
    if step is None:
        found.problem(TRAINER_STATE, Damage.MALFORMED, "it says no global_step")
    elif found.step is not None and step != found.step:
        found.problem(
            TRAINER_STATE, Damage.MALFORMED, f"it is of step {step}, the folder of step {found.step}"
        )
    else:
        found.step = step


def _check_megatron(above: Tree | None, names: list[str], found: Verification) -> None:
    """Check the tracker file, which Megatron writes beside the folder after the folder is whole."""
    try:
        last = read_pointer(above, TRACKER) if above is not None else ""
    except CheckpointError:
        last = ""
    if not last and "integrity.json" not in names:
        return
    found.format = "megatron"
    iteration = iteration_of(last)
    if iteration is not None and found.step is not None and found.step > iteration:
        detail = f"{TRACKER} still says {iteration}: the save has not finished"
        found.problem(".", Damage.UNFINISHED, detail)


def _check_ranks(names: list[str], found: Verification) -> None:
    """Check that the numbers of a file that each rank writes have no gap."""
    for pattern in _OF_RANKS:
        ranks = {int(match[1]): name for name in names if (match := pattern.fullmatch(name))}
        highest = ranks[max(ranks)] if ranks else ""
        for rank in islice(absent(set(ranks)), MOST_PROBLEMS):
            found.problem(highest, Damage.MISSING, f"that of rank {rank} is not there")


def read_step(tree: Tree) -> int | None:
    """Return what `trainer_state.json` of Hugging Face says; None if it says nothing. Raises TooMuchError."""
    try:
        with tree.file(TRAINER_STATE) as file:
            state = parse_json(file.read_all(MOST_JSON_BYTES))
    except TooMuchError:
        raise
    except (ValueError, ReadError):
        return None
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if type(step) is int and 0 <= step < _FIRST_NO_STEP else None


def read_pointer(tree: Tree, name: str) -> str:
    """Return what a small text file says; empty if it cannot be read.

    Raises CheckpointError for a link in a checkpoint that must belong to its owner.
    """
    if tree.owner is not None and stat.S_ISLNK(tree.mode(name)) and not tree.is_folder(name):
        raise CheckpointError(
            f"could not verify {tree.path}: {name} is a symbolic link, which is not followed"
        )
    try:
        with tree.file(name) as file:
            return file.read_all(_LONGEST_POINTER).decode("utf-8", "replace").strip()
    except ReadError:
        return ""


def iteration_of(text: str) -> int | None:
    """Return the iteration that Megatron's tracker file names; None if it names none."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def step_of(name: str) -> int | None:
    """Return the step that the name of a checkpoint says; None for a name without one."""
    stem, dot, suffix = name.rpartition(".")
    base = stem if dot and f".{suffix}" in (*TORCH_SUFFIXES, ".safetensors", ".tmp", ".partial") else name
    for pattern in _STEP_NAMES:
        match = pattern.fullmatch(base)
        if match and len(match[1]) <= 18:
            return int(match[1])
    return None


def absent(ranks: set[int]) -> Iterator[int]:
    """Yield the ranks from 0 to the highest that are not there, in order. The highest may be any number."""
    following = 0
    for rank in sorted(ranks):
        yield from range(following, rank)
        following = rank + 1


def is_temporary(name: str) -> bool:
    """Return True for a name that writers use until they rename."""
    return _TEMPORARY.fullmatch(name) is not None
