"""Whether ranks that must hold the same parameters do, by the fingerprints and gradient norms in their boxes.

Only fingerprints of the same step are compared, and a step that a rank repeats only with the same repetition
by others. Each set of ranks that must be equal (data-parallel ones with the same position in all other
dimensions) is judged by itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.conventions.vocabulary import GRADIENT_NORM, Unseen
from rankwatch_diagnosis.run.box_records import scalars_of
from rankwatch_diagnosis.run.boxes import Box, Boxes
from rankwatch_diagnosis.words import counted, listed

SAME_NORM = 1e-5
"""Part by which equal gradient norms may differ: by the order of additions in float32, where GPUs differ."""
OTHER_NORM = 0.01
"""Part from which gradient norms differ: neighbouring numbers of bfloat16 do by up to 0.8 %."""

_LEAST_FOR_MAJORITY = 3
_MOST_SHOWN = 1_024


@dataclass(frozen=True, kw_only=True)
class ReplicaSet:
    """Ranks that must hold the same parameters, and whether they do."""

    members: str
    """All ranks of the set; see `rankwatch.members`."""
    ranks: tuple[int, ...]
    """Those with a fingerprint of a step that another one has, too."""
    steps_compared: int
    newest_equal_step: int | None
    """Before the first difference, if there is one."""
    differing_step: int | None = None
    """The first step compared at which they differ."""
    odd_ranks: tuple[int, ...] = ()
    """At that step, those that differ from a majority; empty without a majority, as with two ranks."""
    parameters: tuple[str, ...] = ()
    """The first parameter of each group of parameters that differs at that step."""
    steps_before_lost: bool = False
    """Older records were overwritten, and no step that was equal is left: they may have differed before."""

    norm_differing_step: int | None = None
    """The first step at which the gradient norm of a rank differs from that of a majority. Norms are judged
    where a majority agrees to the last digits: those that are taken before the all-reduce do not."""
    norm_odd_ranks: tuple[int, ...] = ()

    @property
    def differ(self) -> bool:
        """True if the ranks do not hold the same parameters."""
        return self.differing_step is not None


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """What fingerprints say of the replicas of a run."""

    sets: tuple[ReplicaSet, ...]
    why_none: Unseen | None
    """Why there are no fingerprints, where that is known."""
    recorded: bool
    """Whether any rank has a fingerprint in its box."""

    @property
    def differing(self) -> tuple[ReplicaSet, ...]:
        """The sets whose ranks differ in parameters or gradient norms, the earliest difference first."""
        found = (each for each in self.sets if each.differ or each.norm_odd_ranks)
        return tuple(sorted(found, key=lambda each: (not each.differ, each.differing_step or 0)))

    @property
    def odd_ranks(self) -> tuple[int, ...]:
        """All ranks that differ from a majority."""
        return tuple(sorted({rank for each in self.differing for rank in each.odd_ranks}))

    def as_json(self) -> dict[str, object]:
        """Return it ready for JSON."""
        return {
            "why_none": self.why_none,
            "recorded": self.recorded,
            "sets": [{**vars(each), "differ": each.differ} for each in self.sets[:_MOST_SHOWN]],
        }


class _Visit(NamedTuple):
    """A step, as often as the process has gone back to earlier steps before."""

    returns: int
    step: int


@dataclass(kw_only=True)
class _Fingerprint:
    """The sums of one rank at one step."""

    total: tuple[int, int] | None = None
    groups: dict[int, tuple[int, int]] = field(default_factory=dict)
    first: dict[int, str] = field(default_factory=dict)
    """Group -> its first parameter."""


_Taken = Mapping[_Visit, _Fingerprint]
_Norms = Mapping[_Visit, float]


def judge_replicas(boxes: Boxes, why_none: Unseen | None) -> Replicas:
    """Compare the fingerprints of the present attempt. why_none: why there are none, where that is known."""
    by_members: dict[str, dict[int, _Taken]] = defaultdict(dict)
    for rank, box in boxes.by_rank.items():
        for members, taken in _of_rank(box).items():
            by_members[members][rank] = taken
    missed = {rank for rank, box in boxes.by_rank.items() if box.missed}
    found = (
        _judge(
            members,
            taken,
            norms={rank: _norms(boxes.by_rank[rank]) for rank in taken},
            lost=bool(missed & taken.keys()),
        )
        for members, taken in sorted(by_members.items())
    )
    return Replicas(
        sets=tuple(each for each in found if each is not None),
        why_none=why_none,
        recorded=bool(by_members),
    )


def _of_rank(box: Box) -> dict[str, dict[_Visit, _Fingerprint]]:
    found: dict[str, dict[_Visit, _Fingerprint]] = defaultdict(lambda: defaultdict(_Fingerprint))
    last, returns = -1, 0
    for record in box.records:
        if record.kind != RecordKind.FINGERPRINT:
            continue
        step, weighted, hashed, first, group = layout.FINGERPRINT.unpack_from(record.payload)
        members = box.names.get(record.name, "")
        if step < 0 or not members:
            continue
        returns += step < last
        last = step
        fingerprint = found[members][_Visit(returns, step)]
        if group:
            fingerprint.groups[group] = (weighted, hashed)
            fingerprint.first[group] = box.names.get(first, "")
        else:
            fingerprint.total = (weighted, hashed)
    return found


def _norms(box: Box) -> dict[_Visit, float]:
    found: dict[_Visit, float] = {}
    last, returns = -1, 0
    for _, step, value in scalars_of(box, GRADIENT_NORM):
        returns += step < last
        last = step
        found[_Visit(returns, step)] = value
    return found


def _judge(
    members: str, taken: Mapping[int, _Taken], *, norms: Mapping[int, _Norms], lost: bool
) -> ReplicaSet | None:
    """Compare the replicas of a set; None where no two ranks have a fingerprint of the same step."""
    ranks: set[int] = set()
    norm_step, norm_odd = _odd_norms(norms)
    equal: int | None = None
    compared = 0
    for visit, values in _compared(taken):
        ranks.update(values)
        compared += 1
        if len(set(values.values())) == 1:
            equal = visit.step
            continue
        odd, right = _odd(values)
        fingerprints = {rank: taken[rank][visit] for rank in values}
        return ReplicaSet(
            members=members,
            ranks=tuple(sorted(values)),
            steps_compared=compared,
            newest_equal_step=equal,
            differing_step=visit.step,
            odd_ranks=odd,
            parameters=tuple(_parameters(fingerprints, right)),
            steps_before_lost=lost and equal is None,
            norm_differing_step=norm_step,
            norm_odd_ranks=norm_odd,
        )
    if not compared:
        return None
    return ReplicaSet(
        members=members,
        ranks=tuple(sorted(ranks)),
        steps_compared=compared,
        newest_equal_step=equal,
        norm_differing_step=norm_step,
        norm_odd_ranks=norm_odd,
    )


def _compared(taken: Mapping[int, _Taken]) -> Iterator[tuple[_Visit, dict[int, tuple[int, int]]]]:
    """Yield each step that several ranks have, and their sums, in order."""
    for visit in sorted({visit for each in taken.values() for visit in each}):
        sums = {
            rank: total
            for rank, each in taken.items()
            if visit in each and (total := each[visit].total) is not None
        }
        if len(sums) > 1:
            yield visit, sums


def _odd(values: Mapping[int, tuple[int, int]]) -> tuple[tuple[int, ...], int]:
    """Return the ranks that differ from the majority, none without one; and a rank to compare with."""
    common, count = Counter(values.values()).most_common(1)[0]
    right = next(rank for rank, each in values.items() if each == common)
    if len(values) < _LEAST_FOR_MAJORITY or count * 2 <= len(values):
        return (), right
    return tuple(sorted(rank for rank, each in values.items() if each != common)), right


def _odd_norms(norms: Mapping[int, _Norms]) -> tuple[int | None, tuple[int, ...]]:
    """Return the first step at which some differ from a majority, and their ranks."""
    for visit in sorted({visit for each in norms.values() for visit in each}):
        values = {rank: each[visit] for rank, each in norms.items() if visit in each}
        finite = [each for each in values.values() if math.isfinite(each)]
        if not finite or len(values) < _LEAST_FOR_MAJORITY:
            continue
        middle = median(finite)
        same = sum(math.isclose(each, middle, rel_tol=SAME_NORM) for each in values.values())
        odd = [rank for rank, each in values.items() if not math.isclose(each, middle, rel_tol=OTHER_NORM)]
        if odd and same * 2 > len(values):
            return visit.step, tuple(sorted(odd))
    return None, ()


def _parameters(fingerprints: Mapping[int, _Fingerprint], right: int) -> Iterator[str]:
    """Yield the first parameter of each group that is not the same everywhere."""
    expected = fingerprints[right]
    for group, sums in sorted(expected.groups.items()):
        others = (each.groups.get(group, sums) for each in fingerprints.values())
        if any(each != sums for each in others):
            yield expected.first[group]


_DOES_NOT_APPLY = "it does not apply"


def replica_parts(found: Replicas) -> Sequence[str]:
    """Write for people: one part for each set that differs, else one in all."""
    if found.differing:
        return [f"{difference(each)}{_where(each)}" for each in found.differing]
    if found.sets:
        compared = sum(each.steps_compared for each in found.sets)
        newest = max(each.newest_equal_step or 0 for each in found.sets)
        sets = f" in each of {len(found.sets)} sets" if len(found.sets) > 1 else ""
        ranks = sum(len(each.ranks) for each in found.sets)
        return [f"equal{sets}: {ranks} ranks, {compared} fingerprints compared, the newest of step {newest}"]
    if found.recorded:
        return ["not compared: no two ranks here have a fingerprint of the same step"]
    if found.why_none is None:
        return ["no fingerprints recorded"]
    sentence = found.why_none.sentence
    if sentence.startswith(_DOES_NOT_APPLY):
        return [f"not applicable{sentence.removeprefix(_DOES_NOT_APPLY)}"]
    return [f"no fingerprints recorded, because {sentence}"]


def difference(found: ReplicaSet) -> str:
    """Say which ranks of the set differ, and since when: in parameters, else in gradient norms."""
    if not found.differ:
        have = "has" if len(found.norm_odd_ranks) == 1 else "have"
        return (
            f"{listed(found.norm_odd_ranks)} {have} another gradient norm than the majority of ranks "
            f"{found.members} at step {found.norm_differing_step}"
        )
    equal = "" if found.newest_equal_step is None else f", equal at step {found.newest_equal_step}"
    before = " or before" if found.steps_before_lost else ""
    when = f"at step {found.differing_step}{before}{equal}"
    if found.odd_ranks:
        verb = "differs" if len(found.odd_ranks) == 1 else "differ"
        return f"{listed(found.odd_ranks)} {verb} from the majority of ranks {found.members} {when}"
    if len(found.ranks) == 2:
        return "ranks {} and {} differ, and one of both is wrong, {}".format(*found.ranks, when)
    return f"ranks {found.members} differ, and no majority tells which are wrong, {when}"


def _where(found: ReplicaSet) -> str:
    if not found.parameters:
        return ""
    more = len(found.parameters) - 1
    others = f" and {counted(more, 'more group')}" if more else ""
    return f"; in the group of parameters that begins with {found.parameters[0]}{others}"
