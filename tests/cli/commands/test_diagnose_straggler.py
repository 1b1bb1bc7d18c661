"""`rankwatch diagnose straggler` prints a verdict as text or as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rankwatch_cli.main import main
from rankwatch_diagnosis.operations.table import Kind, OperationTable
from support.diagnosis.operations import SmallJob


def write(table: OperationTable, path: Path) -> Path:
    lines = ["step,rank,operation,kind,start_seconds,duration_seconds,stage,replica,microbatch,group"]
    for row in range(len(table)):
        lines.append(
            f"{table.step[row]},{table.rank[row]},{table.operations[table.operation[row]]},"
            f"{Kind(table.kind[row]).name.lower()},{table.start_seconds[row]!r},"
            f"{table.duration_seconds[row]!r},{table.stage[row]},{table.replica[row]},"
            f"{table.microbatch[row]},{table.groups[table.group[row]]}"
        )
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")
    return path


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs rely on these keys. The evidence counts the rows that were skipped."""
    path = write(SmallJob(steps=12).slow_rank(3, 1.3).table(), tmp_path / "t.csv")
    path.write_text(path.read_text() + "0,0,forward,compute,0,-1,0,0,0,\n")
    assert main(["diagnose", "straggler", str(path), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    what = ["cause", "phase", "ranks", "stages", "first_step"]
    cost = ["slowdown", "lost_rank_seconds", "causes", "slowdown_if_all_fixed", "events", "event_seconds"]
    assert list(verdict) == [*what, *cost, "evidence"]
    assert (verdict["cause"], verdict["phase"], verdict["ranks"]) == ("slow_rank", "compute", [3])
    assert verdict["first_step"] == 0
    assert verdict["slowdown"] == pytest.approx(1.2, abs=0.1)
    assert verdict["evidence"]["skipped_rows"] == {"with a negative duration": 1}


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict comes first, then the cost, then the evidence. A pipe gets no colours."""
    path = write(SmallJob(steps=12).slow_rank(3, 1.3).table(), tmp_path / "t.csv")
    assert main(["diagnose", "straggler", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "slow_rank: rank 3: computes more slowly than its peers"
    assert lines[1].startswith("the run is ") and "rank-seconds lost" in lines[1]
    assert any("slower_by_ratio" in line for line in lines[2:])
    assert "\033" not in "".join(lines)


def test_other_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another cause is shown with what is known of it, without Python's None and empty lists."""
    job = SmallJob(steps=12).slow_rank(3, 1.3).slow_rank(1, 1.2)
    assert main(["diagnose", "straggler", str(write(job.table(), tmp_path / "t.csv"))]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"None|\[\]|True|False", printed)


def test_table_of_causes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each cause has a row with its ranks, steps and cost, the verdict first; 80 columns hold it."""
    job = SmallJob(steps=40, noise=0.01).slow_rank(3, 1.6, first=20).slow_rank(1, 1.3, first=4, end=18)
    assert main(["diagnose", "straggler", str(write(job.table(), tmp_path / "t.csv"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = lines.index("  who     what                 steps  share  slower  rank-s")
    first, second = lines[head + 1 : head + 3]
    assert re.fullmatch(r"  rank 3  slow_rank \(compute\)  20-39    50%   \d\d\.\d%   *[\d.]+", first)
    assert re.fullmatch(r"  rank 1  slow_rank \(compute\)  4-17     35%    \d\.\d%   *[\d.]+", second)
    assert max(map(len, lines[: head + 3])) <= 80


def test_what_could_not_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Suspects stand apart, with the reason and without being called a cause; so do rows left out."""
    path = write(SmallJob(dp=2, steps=40).slow_rank(1, 1.4).table(), tmp_path / "t.csv")
    path.write_text(path.read_text() + "0,0,forward,compute,0,-1,0,0,0,\n")
    assert main(["diagnose", "straggler", str(path)]) == 0
    text = capsys.readouterr().out
    assert "causes, and what" not in text
    suspected = text[text.index("suspected only:") :]
    assert "inconclusive: of two ranks, neither can be called the odd one" in suspected
    assert "inconclusive: may be rank 1 (" in suspected
    assert "not judged:\n  rows left out: 1 with a negative duration\n" in suspected


def test_healthy_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output names no rank and no cost."""
    path = write(SmallJob(steps=12).table(), tmp_path / "t.csv")
    assert main(["diagnose", "straggler", str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "none: nothing slows the run down"
    assert not any("rank-s" in line or "causes" in line for line in printed)


def test_unusable_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program prints one sentence, and nothing to standard output. The exit status is 2."""
    (tmp_path / "t.csv").write_text("step,rank\n0,0\n")
    assert main(["diagnose", "straggler", str(tmp_path / "t.csv"), "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "column operation, kind" in printed.err


def test_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single long step is shown with its operation and its rank, below the verdict about the others."""
    job = SmallJob(steps=40)
    job.compute[20, 3] = 100.0
    assert main(["diagnose", "straggler", str(write(job.table(), tmp_path / "t.csv"))]) == 0
    head, lost, event, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith("none: ")
    assert lost.endswith(" s in 1 single step, which the slowdown leaves out")
    assert event.startswith("  step 20: ")
    assert event.endswith(" s in backward on rank 3")


def test_by_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every rank has a line of at most 80 columns; the named one comes first, with a mark."""
    path = write(SmallJob(dp=4, pp=2, steps=12).slow_rank(3, 1.3).table(), tmp_path / "t.csv")
    assert main(["diagnose", "straggler", str(path), "--by-rank"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.split()[:2] == ["rank", "stage"])
    assert lines[head].split()[:6] == ["rank", "stage", "repl", "residual", "worst", "steps"]
    assert lines[head + 1].split()[:2] == ["!", "3"]
    assert sorted(int(line.strip("! ").split()[0]) for line in lines[head + 1 : head + 9]) == list(range(8))
    assert max(map(len, lines[head - 1 :])) <= 80


def test_by_rank_of_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of many ranks those at both ends are printed, and how many are left out; JSON has all of them."""
    path = write(SmallJob(dp=24, steps=8).slow_rank(17, 1.4).table(), tmp_path / "t.csv")
    assert main(["diagnose", "straggler", str(path), "--by-rank", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.split()[:2] == ["!", "17"])
    assert "and 16 more in between" in lines[at + 6]
    assert main(["diagnose", "straggler", "--by-rank", str(path), "--json"]) == 0  # TABLE behind the flag
    ranks = json.loads(capsys.readouterr().out)["by_rank"]
    assert (len(ranks), ranks[0]["rank"], ranks[0]["named"]) == (24, 17, True)


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_by_rank_of_nonsense(count: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of ranks that is none is one sentence and status 2."""
    path = write(SmallJob(steps=4).table(), tmp_path / "t.csv")
    assert main(["diagnose", "straggler", str(path), f"--by-rank={count}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
