"""What a verification finds: one outcome, every problem by file and tensor, and what could not be checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

MOST_PROBLEMS = 1000
"""Problems that a verification lists; it counts the others."""
_MOST_CHARACTERS = 250_000
"""Of the problems that are listed, and of what was not checked: as JSON they take at most 8 MiB."""
_LONGEST_TEXT = 500
_LONGEST_PATH = 4096


class Outcome(StrEnum):
    """The closed vocabulary of verification."""

    GOOD = "good"
    DAMAGED = "damaged"
    INCOMPLETE = "incomplete"
    """Still being written, or left half-written."""
    UNVERIFIABLE = "unverifiable"
    """Nothing in it can be held against anything: `Verification.unchecked` says why."""


class Damage(StrEnum):
    """What is wrong with a file or a tensor."""

    FLIPPED = "flipped"
    """Bytes differ from what was written."""
    TRUNCATED = "truncated"
    """The end is not there."""
    MISSING = "missing"
    EXTRA = "extra"
    """Something is there that does not belong to the checkpoint."""
    SIZE = "size"
    """There, but not as long as it must be."""
    MALFORMED = "malformed"
    """Contradicts itself or its format."""
    UNFINISHED = "unfinished"
    """The writer has not finished, or never will."""


class Problem(NamedTuple):
    """One thing wrong, as precisely as it can be named."""

    file: str
    """Path within the checkpoint; the name of the file if the checkpoint is one file."""
    damage: Damage
    detail: str
    tensor: str = ""
    """Name of the tensor or object; empty if none or every one is concerned."""

    def __str__(self) -> str:
        where = f"{self.file}, tensor {self.tensor}" if self.tensor else self.file
        return f"{where}: {self.damage}: {self.detail}"


class Unchecked(NamedTuple):
    """Something that could not be verified, and why. It is no problem by itself."""

    file: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}"


class CheckpointError(Exception):
    """The checkpoint cannot be judged at all; the message is one sentence."""


class CheckpointGoneError(CheckpointError):
    """The checkpoint is not there, or was deleted while it was read."""


@dataclass
class Verification:
    """The result for one checkpoint, filled while it is read."""

    path: Path
    format: str = ""
    """`torch`, `distributed`, `safetensors`, `hugging face`, `megatron`, `deepspeed`, `manifest`, ..."""
    step: int | None = None
    files: int = 0
    bytes: int = 0
    """Size of all files of the checkpoint."""
    verified_bytes: int = 0
    """Those of them that a checksum covers, or whose exact value is known from the format."""
    tensors: int = 0
    """Tensors and objects that were verified by name."""
    problems: list[Problem] = field(default_factory=list)
    more_problems: int = 0
    unchecked: list[Unchecked] = field(default_factory=list)
    more_unchecked: int = 0
    too_much: bool = False
    """True if what decides takes more memory or time to read than it may: it cannot be called good."""
    _left: list[int] = field(default_factory=lambda: [_MOST_CHARACTERS] * 2, init=False, repr=False)

    @property
    def outcome(self) -> Outcome:
        """Damaged beats incomplete: a half-written checkpoint with a flipped bit is damaged."""
        if any(each.damage is not Damage.UNFINISHED for each in self.problems):
            return Outcome.DAMAGED
        if self.problems:
            return Outcome.INCOMPLETE
        return Outcome.GOOD if self.verified_bytes and not self.too_much else Outcome.UNVERIFIABLE

    def problem(self, file: str, damage: Damage, detail: str, tensor: str = "") -> None:
        """Note a problem; beyond MOST_PROBLEMS they are only counted."""
        each = Problem(file[:_LONGEST_PATH], damage, _shortened(detail), _shortened(tensor))
        if self._has_room(0, len(self.problems), *each):
            self.problems.append(each)
        else:
            self.more_problems += 1

    def not_checked(self, file: str, reason: str) -> None:
        """Note what could not be verified; beyond MOST_PROBLEMS it is only counted."""
        each = Unchecked(file[:_LONGEST_PATH], _shortened(reason))
        if self._has_room(1, len(self.unchecked), *each):
            self.unchecked.append(each)
        else:
            self.more_unchecked += 1

    def not_read(self, file: str, reason: str) -> None:
        """Note what is not verified because it is too much. The first stands before all others."""
        self.not_checked(file, reason)
        if not self.too_much and self.unchecked:
            self.unchecked.insert(0, self.unchecked.pop())
        self.too_much = True

    def _has_room(self, which: int, listed: int, *texts: str) -> bool:
        self._left[which] -= sum(map(len, texts))
        return listed < MOST_PROBLEMS and self._left[which] >= 0

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for `--json` and other programs."""
        return {
            "path": str(self.path),
            "outcome": self.outcome.value,
            "format": self.format,
            "step": self.step,
            "files": self.files,
            "bytes": self.bytes,
            "verified_bytes": self.verified_bytes,
            "tensors": self.tensors,
            "problems": [
                {"file": each.file, "tensor": each.tensor, "damage": each.damage.value, "detail": each.detail}
                for each in self.problems
            ],
            "more_problems": self.more_problems,
            "unchecked": [each._asdict() for each in self.unchecked],
            "more_unchecked": self.more_unchecked,
        }


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}..."
