"""Restart cycles in files of the format of NVRx's launcher."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.node_events import RestartCycle, RestartCycles
from rankwatch_agent.sources import nvrx
from rankwatch_agent.sources.nvrx import MOST_CYCLES, REASONS, NvrxCollector
from support.processes.users import ALICE

START = "2026-11-23T06:00:00.250000Z"
END = "2026-11-23T06:10:00Z"
STARTED = 1795413600.25
OWNER = os.getuid()


def report(directory: Path, cycle: int = 0, *, job: str = "70", attempt: int = 0, **fields: Any) -> Path:
    """A report as `ft_launcher` writes it."""
    content = {
        "job_id": job,
        "attempt_index": attempt,
        "cycle_number": cycle,
        "cycle_start_time": START,
        "cycle_end_time": "",
        "cycle_log_file": f"/logs/train_cycle{cycle}.log",
        "active_nodes": "node[01-04]",
        "standby_nodes": "",
        "active_ranks": "0-3",
        "generation": 0,
        **fields,
    }
    path = directory / f"cycle_info.{job}.{attempt}.{cycle}"
    path.write_text(json.dumps(content, indent=2))
    return path


class Node:
    """The collector on a node that has ranks of job 70."""

    def __init__(self, directory: Path) -> None:
        self.cycles = RestartCycles()
        self.cycles.wanted = frozenset({("70", OWNER)})
        self.collector = NvrxCollector(directory=directory, cycles=self.cycles, schedule=Schedule(15.0, 10.0))

    def read(self) -> tuple[RestartCycle, ...]:
        """The cycles of the job after one run."""
        self.collection = self.collector.collect()
        return self.cycles.found.get("70", ())

    def skipped(self) -> dict[str, float]:
        counts = {each.labels[0]: each.value for each in self.collection.series}
        assert tuple(counts) == REASONS
        return {reason: count for reason, count in counts.items() if count}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_cycles(node: Node, tmp_path: Path) -> None:
    """In the order of attempt and number, with their times and nodes; the link and others are left alone."""
    report(tmp_path, 10, standby_nodes="node[07-08],spare1", generation="0")
    report(tmp_path, 2, cycle_end_time=END, attempt_index="0")
    report(tmp_path, 0, attempt=1)
    report(tmp_path, 0, job="71")
    (tmp_path / "cycle_info.70.current").symlink_to("cycle_info.70.0.10")
    (tmp_path / "cycle_info.70.0.10.tmp").write_text("{")
    (tmp_path / "train.log").touch()
    assert node.read() == (
        RestartCycle(0, 2, STARTED, STARTED + 599.75, 4, 0, OWNER),
        RestartCycle(0, 10, STARTED, None, 4, 3, OWNER),
        RestartCycle(1, 0, STARTED, None, 4, 0, OWNER),
    )
    assert node.skipped() == {}
    assert list(node.cycles.found) == ["70"]


def test_end_is_seen(node: Node, tmp_path: Path) -> None:
    """The launcher replaces the file when the cycle ends."""
    report(tmp_path)
    assert node.read()[0].ended is None
    path = report(tmp_path / "..", cycle_end_time=END, generation=1)
    path.replace(tmp_path / path.name)
    assert node.read()[0].ended == STARTED + 599.75


def test_half_written(node: Node, tmp_path: Path) -> None:
    """It is left out and counted once, and read when it is whole."""
    path = report(tmp_path)
    text = path.read_text()
    for cut in (0, 1, len(text) // 2):
        path.write_text(text[:cut])
        assert node.read() == node.read() == ()
    assert node.skipped() == {"half_written": 3}
    path.write_text(text)
    assert len(node.read()) == 1


def test_of_other_kinds(node: Node, tmp_path: Path) -> None:
    """Links, pipes and directories are not opened, and huge files not read."""
    secret = tmp_path / "secret"
    secret.write_text(report(tmp_path, 9).read_text())
    (tmp_path / "cycle_info.70.0.1").symlink_to(secret)
    os.mkfifo(tmp_path / "cycle_info.70.0.2")
    (tmp_path / "cycle_info.70.0.3").mkdir()
    with report(tmp_path, 4).open("a") as file:
        file.truncate(1 << 40)
    assert [each.number for each in node.read()] == [9]
    assert node.skipped() == {"no_file": 3, "too_large": 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"job_id": "71"},
        *({"cycle_number": each} for each in (8, True)),
        *({"attempt_index": each} for each in (-1, 1.5)),
        *({"cycle_start_time": each} for each in ("", 7, "2026-11-23T06:00:00")),
        {"cycle_end_time": "later"},
        *({"active_nodes": each} for each in (4, "node[4-1]")),
        *({"standby_nodes": each} for each in ("a[1-99999999999]", "[1-9][1-9][1-99999999]")),
    ],
)
def test_foreign(node: Node, tmp_path: Path, fields: dict[str, Any]) -> None:
    """What its name does not say, or no report at all, is left out and counted."""
    report(tmp_path, 0, **fields)
    assert node.read() == ()
    assert node.skipped() == {"foreign": 1}


@pytest.mark.parametrize("text", ["[]", "7", "null", '"x"', "{}", "[" * 50_000])
def test_no_report(node: Node, tmp_path: Path, text: str) -> None:
    (tmp_path / "cycle_info.70.0.0").write_text(text)
    assert node.read() == ()
    assert sum(node.skipped().values()) == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("a", 1),
        ("a,b[1-3,7],c", 6),
        ("r[1-2]n[01-10]", 20),
        (",".join(f"host-{each}" for each in range(50_000)), 50_000),
    ],
    ids=["one", "ranges", "product", "long"],
)
def test_names_of_nodes(node: Node, tmp_path: Path, text: str, count: int) -> None:
    """SLURM's form of a list, with several ranges, and long lists in little time."""
    report(tmp_path, active_nodes=text)
    assert node.read()[0].active_nodes == count


def test_clock_set_back(node: Node, tmp_path: Path) -> None:
    report(tmp_path, cycle_end_time="2026-11-23T05:00:00Z")
    assert node.read()[0].ended == STARTED


def test_newest_cycles(node: Node, tmp_path: Path) -> None:
    """A job that was restarted often costs the newest cycles only."""
    for cycle in range(MOST_CYCLES + 5):
        report(tmp_path, cycle)
    assert [each.number for each in node.read()] == list(range(5, MOST_CYCLES + 5))


def test_no_directory(tmp_path: Path) -> None:
    """The launcher makes it when the first cycle begins."""
    with pytest.raises(NotApplicable):
        Node(tmp_path / "nvrx").read()
    (tmp_path / "file").touch()
    with pytest.raises(CollectError):
        Node(tmp_path / "file").read()


def test_link_to_the_directory(tmp_path: Path) -> None:
    """The setting may name a link: whoever wrote the setting chose it."""
    (tmp_path / "real").mkdir()
    report(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    assert len(Node(tmp_path / "link").read()) == 1


@pytest.mark.skipif(OWNER != 0, reason="only root can make files of other users")
def test_cycles_of_other_users(node: Node, tmp_path: Path) -> None:
    """Later cycles of the same job by another user push out none, whether that user has ranks here or not."""
    report(tmp_path, 3)
    for number in range(100, 103 + 2 * MOST_CYCLES):
        os.chown(report(tmp_path, number), ALICE, ALICE)
    assert [each.number for each in node.read()] == [3]
    node.cycles.wanted |= {("70", ALICE)}
    assert len(node.read()) == 1 + MOST_CYCLES
    assert [each.number for each in (node.cycles.newest("70", OWNER),) if each] == [3]


def test_product_of_many_ranges(node: Node, tmp_path: Path) -> None:
    """A name that stands for more nodes than there are is left out before all of its ranges are multiplied:
    the whole product would take all day."""
    report(tmp_path, active_nodes="n" + ("[1-" + "9" * 4200 + "]") * 240)
    report(tmp_path, 1, active_nodes="n" + "[0-999999]" * 100_000)
    assert node.read() == ()
    assert node.skipped() == {"foreign": 2}


def test_time_of_users(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is no time to read is read in the next runs."""
    monkeypatch.setattr(nvrx, "_PASS_SECONDS", 1e-9)
    for number in range(3):
        report(tmp_path, number)
    assert [len(node.read()) for _ in range(3)] == [1, 2, 3]
