"""What is said of replicas to a person."""

from __future__ import annotations

from collections.abc import Sequence

from rankwatch_diagnosis.run.replicas import Replicas, ReplicaSet
from rankwatch_diagnosis.run.why import listed

_DOES_NOT_APPLY = "it does not apply"


def replica_parts(found: Replicas) -> Sequence[str]:
    """For people: one part for each set that differs, else one in all."""
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
    """Which ranks of the set differ, and since when: in parameters, else in gradient norms."""
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
    others = f" and {more} more group{'' if more == 1 else 's'}" if more else ""
    return f"; in the group of parameters that begins with {found.parameters[0]}{others}"
