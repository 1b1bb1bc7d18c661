"""The curves of recall by size of fault and by spread of chips."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from bench.detection.curves import SIZES, Tried, attempt, by_chips, picture
from bench.detection.production import CHIP_SIGMAS


@pytest.fixture(scope="module")
def tried() -> Tried:
    return attempt(0.004, 0.4, 0, 1)


def test_attempt(tried: Tried) -> None:
    """Jobs of one number have the same shape, whatever the chips and the size of the fault are."""
    other = attempt(0.03, 0.02, 0, 1)
    assert (tried.judged.ranks, tried.judged.replicas) == (other.judged.ranks, other.judged.replicas)
    assert tried.judged.truth["ranks"] == other.judged.truth["ranks"]
    assert tried.judged.truth["slowdown"] > other.judged.truth["slowdown"]
    assert tried.judged.all_found


def test_picture(tried: Tried) -> None:
    """One curve for each spread of chips, higher where more was found."""
    missed = tried._replace(judged=replace(tried.judged, all_found=False))
    grid = [
        (tried if size >= 0.05 else missed)._replace(chip_sigma=sigma, size=size)
        for sigma in CHIP_SIGMAS
        for size in SIZES
    ]
    assert by_chips(grid)[0.01] == [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    drawn = ElementTree.fromstring(picture(grid))
    lines = [each.attrib["points"].split() for each in drawn.iter() if each.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [len(SIZES)] * len(CHIP_SIGMAS)
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights[0] == heights[1] > heights[2] == heights[-1]
