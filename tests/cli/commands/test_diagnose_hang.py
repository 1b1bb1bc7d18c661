"""`rankwatch diagnose hang`: a short verdict first, then the evidence, or JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch_cli.commands.diagnose.hang import lines, main
from rankwatch_diagnosis.hang.verdict import HangVerdict, State
from support.diagnosis.hang_jobs import Shape, hung_job
from support.diagnosis.run_boxes import stalled_for
from support.training.recorder import recorder_pickle


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Dumps of a job in which rank 5 sleeps."""
    for rank, document in hung_job(Shape(4, 1, 2), 5, 4).dumps().items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(recorder_pickle(document))
    return tmp_path


@pytest.mark.process
def test_verdict(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first line names the state, the rank and the collective. A pipe gets no colours."""
    assert main([str(directory)]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first == "HANG: the run hangs; rank 5 is to blame, in all_reduce of DATA_PARALLEL_GROUP (20001)"
    assert second.startswith("  rank 5 has not called all_reduce number 3 of DATA_PARALLEL_GROUP (20001)")
    assert "evidence:" in rest


@pytest.mark.process
def test_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs rely on these keys."""
    assert main([str(directory), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert list(verdict) == [
        "state", "ranks", "group", "operation", "missing_ranks", "groups", "evidence",
    ]  # fmt: skip
    assert (verdict["state"], verdict["ranks"]) == ("hang", [5])


def test_mismatch() -> None:
    """A mismatch is a sentence that names each call and its ranks, not a printed dict."""
    mismatch = {
        "group": "default_pg (0)",
        "sequence": 7,
        "calls": {"all_reduce 8 -> 8 Float": [0, 2], "broadcast 8 -> 8 Float": [1]},
        "odd_ranks": [1],
    }
    verdict = HangVerdict(state=State.DESYNC, ranks=(1,), evidence={"mismatches": [mismatch]})
    assert list(lines(verdict))[-1] == (
        "  mismatch: number 7 of default_pg (0): ranks 0, 2 called all_reduce 8 -> 8 Float; "
        "rank 1 called broadcast 8 -> 8 Float"
    )


def test_nothing_pending() -> None:
    """An empty dump proves neither health nor a hang."""
    first = next(iter(lines(HangVerdict(state=State.INCONCLUSIVE))))
    assert first == (
        "INCONCLUSIVE: no operation is pending, but the dumps show too little to call the run healthy"
    )


def test_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory of a run: its ranks and their boxes are looked at."""
    ranks = stalled_for(tmp_path, 70.0)
    for each in ranks:
        each.writer.unlock()
    assert main([str(tmp_path / "job")]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "HANG: the run hangs; rank 1 is to blame, in all_reduce of default_pg (0-2)"
    assert second.startswith("  rank 1 has not called all_reduce number 7 of default_pg (0-2)")
