"""What the names in and of a checkpoint tell: its step, its layout, and if it is meant to be temporary."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def step_of(name: str) -> int | None:
    """The step that the name of a checkpoint says; None for a name without one."""
    stem, dot, suffix = name.rpartition(".")
    base = stem if dot and f".{suffix}" in (*TORCH_SUFFIXES, ".safetensors", ".tmp", ".partial") else name
    for pattern in _STEP_NAMES:
        match = pattern.fullmatch(base)
        if match and len(match[1]) <= 18:
            return int(match[1])
    return None


def absent(ranks: set[int]) -> Iterator[int]:
    """The ranks from 0 to the highest that are not there, in order. The highest may be any number."""
    following = 0
    for rank in sorted(ranks):
        yield from range(following, rank)
        following = rank + 1


def is_temporary(name: str) -> bool:
    """True for a name that writers use until they rename."""
    return _TEMPORARY.fullmatch(name) is not None
