"""`rankwatch diagnose straggler` prints a verdict as text or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwatch_cli.main import main
from rankwatch_diagnosis.operations.writing import write_table
from support.diagnosis.operations import SmallJob

UNUSABLE = "0,0,forward,compute,0,-1,0,0,0,\n"
Diagnosed = Callable[..., str]


@pytest.fixture
def diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Diagnosed:
    """What the command prints about the table of a job, with further lines."""

    def printed(job: SmallJob, *flags: str, more: str = "") -> str:
        path = tmp_path / "t.csv"
        write_table(job.table(), path, "csv")
        path.write_text(path.read_text() + more)
        assert main(["diagnose", "straggler", *flags[1:], str(path), *flags[:1]]) == 0
        return capsys.readouterr().out

    return printed


def test_json(diagnosed: Diagnosed) -> None:
    """Programs rely on these keys. The evidence counts the rows that were skipped."""
    verdict = json.loads(diagnosed(SmallJob(steps=12).slow_rank(3, 1.3), "--json", more=UNUSABLE))
    what = ["cause", "phase", "ranks", "stages", "first_step"]
    cost = ["slowdown", "lost_rank_seconds", "causes", "slowdown_if_all_fixed", "events", "event_seconds"]
    assert list(verdict) == [*what, *cost, "evidence"]
    assert (verdict["cause"], verdict["phase"], verdict["ranks"]) == ("slow_rank", "compute", [3])
    assert verdict["first_step"] == 0
    assert verdict["slowdown"] == pytest.approx(1.2, abs=0.1)
    assert verdict["evidence"]["skipped_rows"] == {"with a negative duration": 1}


def test_text(diagnosed: Diagnosed) -> None:
    """The verdict comes first, then the cost, then the evidence. A pipe gets no colours."""
    lines = diagnosed(SmallJob(steps=12).slow_rank(3, 1.3)).splitlines()
    assert lines[0] == "slow_rank: rank 3: computes more slowly than its peers"
    assert lines[1].startswith("the run is ") and "rank-seconds lost" in lines[1]
    assert any("slower_by_ratio" in line for line in lines[2:])
    assert "\033" not in "".join(lines)


def test_table_of_causes(diagnosed: Diagnosed) -> None:
    """Each cause has a row with its ranks, steps and cost, the verdict first; 80 columns hold it. What is not
    known has no Python's None or empty list."""
    job = SmallJob(steps=40, noise=0.01).slow_rank(3, 1.6, first=20).slow_rank(1, 1.3, first=4, end=18)
    printed = diagnosed(job)
    lines = printed.splitlines()
    head = lines.index("  who     what                 steps  share  slower  rank-s")
    first, second = lines[head + 1 : head + 3]
    assert re.fullmatch(r"  rank 3  slow_rank \(compute\)  20-39    50%   \d\d\.\d%   *[\d.]+", first)
    assert re.fullmatch(r"  rank 1  slow_rank \(compute\)  4-17     35%    \d\.\d%   *[\d.]+", second)
    assert max(map(len, lines[: head + 3])) <= 80
    assert not re.search(r"None|\[\]|True|False", printed)


def test_what_could_not_be_judged(diagnosed: Diagnosed) -> None:
    """Suspects stand apart, with the reason and without being called a cause; so do rows left out."""
    text = diagnosed(SmallJob(dp=2, steps=40).slow_rank(1, 1.4), more=UNUSABLE)
    assert "causes, and what" not in text
    suspected = text[text.index("suspected only:") :]
    assert "inconclusive: of two ranks, neither can be called the odd one" in suspected
    assert "inconclusive: may be rank 1 (" in suspected
    assert "not judged:\n  rows left out: 1 with a negative duration\n" in suspected


def test_healthy_run(diagnosed: Diagnosed) -> None:
    """The output names no rank and no cost."""
    printed = diagnosed(SmallJob(steps=12)).splitlines()
    assert printed[0] == "none: nothing slows the run down"
    assert not any("rank-s" in line or "causes" in line for line in printed)


def test_events(diagnosed: Diagnosed) -> None:
    """A single long step is shown with its operation and its rank, below the verdict about the others."""
    job = SmallJob(steps=40)
    job.compute[20, 3] = 100.0
    head, lost, event, *_ = diagnosed(job).splitlines()
    assert head.startswith("none: ")
    assert lost.endswith(" s in 1 single step, which the slowdown leaves out")
    assert event.startswith("  step 20: ") and event.endswith(" s in backward on rank 3")


def test_by_rank(diagnosed: Diagnosed) -> None:
    """Every rank has a line of at most 80 columns; the named one comes first, with a mark."""
    lines = diagnosed(SmallJob(dp=4, pp=2, steps=12).slow_rank(3, 1.3), "--by-rank").splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.split()[:2] == ["rank", "stage"])
    assert lines[head].split()[:6] == ["rank", "stage", "repl", "residual", "worst", "steps"]
    assert lines[head + 1].split()[:2] == ["!", "3"]
    assert sorted(int(line.strip("! ").split()[0]) for line in lines[head + 1 : head + 9]) == list(range(8))
    assert max(map(len, lines[head - 1 :])) <= 80


def test_by_rank_of_many(diagnosed: Diagnosed) -> None:
    """Of many ranks those at both ends are printed, and how many are left out; JSON has all of them."""
    job = SmallJob(dp=24, steps=8).slow_rank(17, 1.4)
    lines = diagnosed(job, "--by-rank=8").splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:2] == ["!", "17"])
    assert "and 16 more in between" in lines[at + 6]
    ranks = json.loads(diagnosed(job, "--json", "--by-rank"))["by_rank"]  # TABLE behind the flag
    assert (len(ranks), ranks[0]["rank"], ranks[0]["named"]) == (24, 17, True)


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_by_rank_of_nonsense(count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of ranks that is none is one sentence and status 2."""
    write_table(SmallJob(steps=4).table(), tmp_path / "t.csv", "csv")
    assert main(["diagnose", "straggler", str(tmp_path / "t.csv"), f"--by-rank={count}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
