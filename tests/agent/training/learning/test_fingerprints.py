"""Fingerprints of a rank as series."""

from __future__ import annotations

import math

from rankwatch.blackbox import layout
from rankwatch_agent.training.learning.fingerprints import RankFingerprints, level_of, value_of


def taken(*steps: int, every: int = 100, members: str = "0-3") -> RankFingerprints:
    found = RankFingerprints()
    for step in steps:
        found.take(members, 0.25, layout.FINGERPRINT.pack(step, step + 2**63, 7, every, 0), 0)
    return found


def steps(found: RankFingerprints) -> dict[str, float]:
    return by_level(found, "rankwatch_rank_fingerprint_step")


def norms(found: RankFingerprints) -> dict[str, float]:
    return by_level(found, "rankwatch_rank_fingerprint_gradient_norm")


def by_level(found: RankFingerprints, name: str) -> dict[str, float]:
    return {each.labels[3]: each.value for each in found.series(("r", "0")) if each.metric.name == name}


def test_levels() -> None:
    """Each level keeps every eighth fingerprint of the one before, whatever the number of steps between."""
    assert [level_of(100 * number, 100) for number in (0, 1, 8, 64, 72, 512, 4096)] == [3, 0, 1, 2, 1, 3, 3]
    found = taken(*range(0, 7001, 100))
    assert steps(found) == {"0": 7000, "1": 6400, "2": 6400, "3": 0}


def test_gradient_norm() -> None:
    """The norm of a step is shown with its fingerprint, whichever comes first, and not with another one."""
    found = taken(6300)
    found.take_norm(6300, 1.5)
    assert norms(found) == {"0": 1.5}
    found.take_norm(6400, math.nan)
    found.take("0-3", 0.25, layout.FINGERPRINT.pack(6400, 1, 1, 100, 0), 0)
    assert norms(found).keys() == {"0", "1", "2"}
    found.take_norm(6401, 2.0)
    found.take("0-3", 0.25, layout.FINGERPRINT.pack(6500, 1, 1, 100, 0), 0)
    assert norms(found).keys() == {"1", "2"}
    found.begin_process()
    found.take("0-3", 0.25, layout.FINGERPRINT.pack(6401, 1, 1, 100, 0), 0)
    assert norms(found) == {}


def test_exact_in_a_float() -> None:
    """The value keeps all its bits as a sample of Prometheus, and one bit of either sum changes it."""
    values = {value_of(5, 7), value_of(4, 7), value_of(5, 6), value_of(2**64 - 1, 2**64 - 1)}
    assert len(values) == 4
    assert all(int(float(each)) == each < 2**48 for each in values)


def test_hostile_records() -> None:
    """A record of a group, without ranks, or with a step or an interval below zero leaves no series."""
    found = RankFingerprints()
    for members, record in (
        ("0-3", (5, 1, 1, 1, 4)),
        ("", (5, 1, 1, 1, 0)),
        ("0-3", (-1, 1, 1, 1, 0)),
        ("0-3", (5, 1, 1, 0, 0)),
    ):
        found.take(members, 1.0, layout.FINGERPRINT.pack(*record), 0)
    assert list(found.series(("r", "0"))) == []
    for number in range(100):
        found.take(f"0-{number}", float("nan"), layout.FINGERPRINT.pack(1, 1, 1, 1, 0), 0)
    assert len(list(found.series(("r", "0")))) == 8


def test_new_process() -> None:
    """A new process begins without fingerprints: it may repeat steps with other parameters. Costs go on."""
    found = taken(0, 100)
    found.begin_process()
    assert steps(found) == {}
    assert (found.count, found.seconds) == (2, 0.5)
