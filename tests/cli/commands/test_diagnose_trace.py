"""`rankwatch diagnose trace` prints the verdict of the straggler engine on traces of PyTorch's profiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch_cli.main import main
from rankwatch_diagnosis.operations.reading import read_operations
from support.diagnosis.kineto import GpuJob, TraceForm, write_traces


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("traces")
    write_traces(directory, GpuJob(slow={2: 1.3}), TraceForm(describe=False))
    return directory


def test_text(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "trace", str(traces), "--by-rank"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("slow_rank: rank 2: computes more slowly than its peers\n")
    assert "traces: files 4, ranks 0 to 3, steps 10 to 15" in text
    assert "not_shown:\n  the sizes of collectives are unknown\n" in text
    assert "!    2" in text


def test_json(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The object of `diagnose straggler`, with the facts of the traces as evidence."""
    assert main(["diagnose", "trace", str(traces), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cause"], found["ranks"]) == ("slow_rank", [2])
    assert found["causes"][0]["ranks"] == [2]
    evidence = found["evidence"]
    assert evidence["traces"]["damaged_events"] == 0
    assert evidence["collectives"][0]["operation"] == "all_reduce"
    assert evidence["not_shown"] == ["the sizes of collectives are unknown"]


def test_table(traces: Path, tmp_path: Path) -> None:
    """`--table` writes what was diagnosed."""
    kept = tmp_path / "all.parquet"
    assert main(["diagnose", "trace", str(traces), "--table", str(kept)]) == 0
    table = read_operations(kept).table
    assert (set(table.rank.tolist()), int(table.step.min()), int(table.step.max())) == ({0, 1, 2, 3}, 10, 15)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "DIR"),
        (["/nowhere"], "/nowhere is no directory of traces"),
        (["{empty}"], "holds no trace"),
        (["{traces}", "--table", "t.xls"], "--table is 't.xls', expected a name that ends in one of .csv"),
        (["{traces}", "--table", "/nowhere/t.csv"], "could not write /nowhere/t.csv"),
    ],
)
def test_mistakes(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    """One sentence and exit status 2."""
    given = [each.format(empty=tmp_path, traces=traces) for each in arguments]
    try:
        status: object = main(["diagnose", "trace", *given])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    text = capsys.readouterr().err
    assert sentence in text
    assert text.count("\n") == 1
