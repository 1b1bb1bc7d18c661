"""The published numbers of series per rank and per device are the numbers there are."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from rankwatch.conventions.metrics import METRICS, TOGETHER, Label, section
from rankwatch.conventions.states import SlowPhase
from rankwatch.conventions.vocabulary import LOSS, Capability, Unseen
from rankwatch_agent.runtime.collector import Collection
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.learning.scalars import NORMS, REASONS
from rankwatch_agent.training.series.runs import capability_series
from support.paths import ROOT
from support.training.ranks import rank, values

PAGE = ROOT / "docs" / "cardinality.md"
OWN = (Label.RUN, Label.RANK)
CHECKPOINT_SERIES = 3 * 3 + 3 * 5
"""Three operations by three outcomes, and of each the seconds, all and blocking, the bytes, and the time of
the last failure and why."""
ONE_AT_A_TIME = (
    "rankwatch_rank_info",
    "rankwatch_rank_gpu_info",
    "rankwatch_rank_gpu_start_timestamp_seconds",
    "rankwatch_rank_state",
    "rankwatch_rank_phase_start_timestamp_seconds",
    "rankwatch_loss_trend",
)
PULLS = 2
VARIATION_TERMS = 6
LEARNING_SERIES = len(REASONS) + 3 * len(NORMS) + len((LOSS, *NORMS))
"""Resets by reason; ratio, explosions and the last one of each norm; first non-finite step of each and of the
loss."""


def test_fixed_part() -> None:
    """The fixed part of the formula is what the declarations add up to.

    A new per-rank metric changes the page.
    """
    uploads = [each for each in METRICS if each.labels == OWN and "uploaded" in each.name]
    plain = [each for each in METRICS if each.labels == OWN and each not in uploads]
    recent = sum(len(SlowPhase) if Label.PHASE in each else 1 for each in _labels_of_recent(Label.RANK))
    known = CHECKPOINT_SERIES + PULLS + VARIATION_TERMS + LEARNING_SERIES
    assert len(plain) + len(ONE_AT_A_TIME) + known + recent == _published_fixed_part()
    with_uploads = len(uploads) + CHECKPOINT_SERIES // 3
    assert f"uploads of checkpoints apart from their saves has {with_uploads} more" in PAGE.read_text()


def test_recent_steps_of_a_node() -> None:
    """Means of the run on a node: some, some for each reason, and some for each of its stages."""
    of_node = [each for each in (*_labels_of_recent(Label.RUN),) if Label.RANK not in each]
    halves = [each for each in of_node if Label.HALF in each]
    of_stage = [each for each in of_node if Label.STAGE in each and each not in halves]
    stage = sum(len(SlowPhase) if Label.PHASE in each else 1 for each in of_stage)
    reasons = len(TOGETHER) * sum(Label.REASON in each for each in of_node)
    run = reasons + sum(each == (Label.RUN,) for each in of_node)
    assert f"| {run}, and {stage} for each of its stages |" in PAGE.read_text()
    assert f"{2 * len(halves)} for each stage more" in PAGE.read_text()


def _labels_of_recent(label: Label) -> list[tuple[Label, ...]]:
    return [each.labels for each in section("recent") if label in each.labels]


def test_collectives_and_groups() -> None:
    """Collectives and groups have the series that the formula says.

    The black box knows no signature; else each of a group's figures comes from both sources.
    """
    pair = {*OWN, Label.GROUP, Label.MEMBERS, Label.OPERATION}
    place = {*OWN, Label.GROUP, Label.MEMBERS, Label.SOURCE}
    of_pair = sum(set(each.labels) == pair for each in METRICS)
    of_group = 2 * sum(set(each.labels) == place for each in METRICS) - 1
    assert re.findall(r"\+ (\d+) A \+ (\d+) G$", PAGE.read_text(), flags=re.MULTILINE) == [
        (str(of_pair), str(of_group))
    ]


def test_capabilities() -> None:
    """However many reasons there are, a capability has one series for a run and node."""
    assert f"(at most {len(Capability)}) | 1 |" in PAGE.read_text()
    reasons = [dict.fromkeys(Capability, why) for why in Unseen]
    assert len(list(capability_series("run", reasons))) == len(Capability)


@pytest.mark.process
def test_series_of_a_rank(tmp_path: Path) -> None:
    """A rank has no more series than the formula says.

    Counted on a rank that uses phases, scalars, units, checkpoints and an evaluation.
    """
    code = """
steps(25)
with run.step():
    for name in ("backward", "optimizer"):
        with run.phase(name): pass
    run.scalar("gradient_norm", 1.0)
    run.work(samples=2)
with run.checkpoint("save") as operation:
    with operation.stage("write"): pass
with run.evaluation(): pass
steps(4)
ready()
"""
    with rank(tmp_path, code):
        collection = RanksCollector(directory=tmp_path).collect()
    series = [each for each in collection.series if each.labels[:2] == ("job", "0")]
    phases = len(_labels(collection, "rankwatch_step_phase_seconds_total") | {"checkpoint", "evaluation"})
    units = len(_labels(collection, "rankwatch_work_total"))
    names = len(_labels(collection, "rankwatch_scalar"))
    stages = len(values(collection, "rankwatch_checkpoint_stage_seconds_total"))
    assert (units, names, stages) == (2, 2, 1)
    assert len(series) <= _published_fixed_part() + 2 * phases + units + 3 * names + 3 * stages


def _published_fixed_part() -> int:
    (published,) = re.findall(r"^(\d+) \+ 2 P", PAGE.read_text(), flags=re.MULTILINE)
    return int(published)


def _labels(collection: Collection, name: str) -> set[str]:
    return {labels[2] for labels in values(collection, name)}


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
