"""The published numbers of series per device match the golden node."""

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
def test_series_per_device(row: str, begins: str, labels: str) -> None:
    """At most the published number, and not far fewer, which would be as useless."""
    (published,) = re.findall(rf"^\| {row}[^|]*\| (\d+)", PAGE.read_text(), flags=re.MULTILINE)
    lines = [line for line in GOLDEN.read_text().splitlines() if line.startswith(begins)]
    # What the golden file leaves out, because it changes: a time stamp for each XID code.
    count = Counter(found[1] for line in lines if (found := re.search(labels, line)))
    most = max(count.values())
    assert 0.9 * int(published) <= most <= int(published)
