"""The published numbers of series of a node's hardware are those of the golden node."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from support.paths import ROOT

PAGE = ROOT / "docs" / "cardinality.md"
GOLDEN = Path(__file__).parent / "fixtures" / "gpu_node.golden"


@pytest.mark.parametrize(
    ("row", "begins", "labels"),
    [
        ("GPU", "rankwatch_", r'gpu="([^"]+)"'),
        ("RDMA port", "rankwatch_rdma_", r'device="([^"]+)".*,port="[^"]+"'),
        ("network interface", "rankwatch_network_", r'device="([^"]+)"'),
    ],
)
def test_a_device_has_no_more_series_than_published_and_not_many_fewer(
    row: str, begins: str, labels: str
) -> None:
    """A figure that is far too high would be as little use as one too low."""
    (published,) = re.findall(rf"^\| {row}[^|]*\| (\d+)", PAGE.read_text(), flags=re.MULTILINE)
    lines = [line for line in GOLDEN.read_text().splitlines() if line.startswith(begins)]
    # What the golden file leaves out, because it changes: a time stamp for each XID code.
    count = Counter(found[1] for line in lines if (found := re.search(labels, line)))
    most = max(count.values())
    assert 0.9 * int(published) <= most <= int(published)
