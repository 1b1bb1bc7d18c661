"""`rankwatch table` writes the operations of a run for a window of steps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions.states import Cause
from rankwatch.conventions.vocabulary import PHASES
from rankwatch.identity import Identity
from rankwatch_cli.main import main
from rankwatch_diagnosis.operations.reading import read_operations
from rankwatch_diagnosis.operations.table import OperationTable
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.operation_table import table_of_run
from rankwatch_diagnosis.straggler.engine import diagnose


def table(run: Path, steps: str, output: Path) -> OperationTable:
    assert main(["table", str(run), f"--steps={steps}", "-o", str(output)]) == 0
    return read_operations(output).table


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_verdict_of_the_table(name: str, slow_run: Path, tmp_path: Path) -> None:
    """The whole run as a file, in any format, has the verdict of `diagnose run`, number by number."""
    found = diagnose(table(slow_run, ":", tmp_path / name))
    assert found == diagnose_run(slow_run).straggler
    assert (found.cause, found.ranks) == (Cause.SLOW_RANK, (5,))


def test_verdict_of_a_window(slow_run: Path, tmp_path: Path) -> None:
    """A window has the verdict of its own steps: before the fault nobody is slow."""
    whole = table_of_run(slow_run)
    before = diagnose(table(slow_run, "1:20", tmp_path / "before.csv"))
    assert before == diagnose(whole.take(whole.step < 20))
    assert before.cause is Cause.NONE
    assert diagnose(table(slow_run, "20:", tmp_path / "after.csv")).ranks == (5,)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("10:12", [10, 11]),
        ("38:", [38, 39]),
        (":3", [1, 2]),
        ("-2:", [38, 39]),
        (":-37", [1, 2]),
        ("7", [7]),
        ("-1", [39]),
    ],
)
def test_window(steps: str, expected: list[int], slow_run: Path, tmp_path: Path) -> None:
    """It is a Python slice of step numbers: without its end, and negative ones count from the end."""
    assert np.unique(table(slow_run, steps, tmp_path / "t.csv").step).tolist() == expected


@pytest.mark.parametrize("steps", ["5:3", "5:5", "a:b", "", "1:2:3", "1-2", "1.5:3", "-3:-5", "9" * 19])
def test_no_window(steps: str, slow_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nonsense is one sentence and status 2, before anything is read."""
    assert main(["table", str(slow_run), f"--steps={steps}"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "expected A:B with A below B" in printed.err


def test_standard_output(slow_run: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """Without a file it is CSV on standard output; what was written goes to standard error."""
    assert main(["table", str(slow_run), "--steps", "10:12"]) == 0
    printed = capsysbinary.readouterr()
    (tmp_path / "t.csv").write_bytes(printed.out)
    assert len(read_operations(tmp_path / "t.csv").table) == printed.out.count(b"\n") - 1
    assert printed.err.startswith(b"steps 10 to 11: ") and printed.err.endswith(b" of 8 ranks\n")


def test_steps_that_are_gone(slow_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps that the boxes no longer hold are said, and where all of them are gone, which are still there."""
    assert main(["table", str(slow_run), "--steps", "30:50"]) == 0
    assert "hold steps 1 to 39: the others of 30:50 are overwritten" in capsys.readouterr().err
    assert main(["table", str(slow_run), "--steps", "50:60"]) == 2
    assert capsys.readouterr().err == (
        "rankwatch table: no step of 50:60 is in the black boxes, which hold steps 1 to 39\n"
    )


@pytest.mark.parametrize("name", ["t.tsv", "t.gz", "missing/t.csv"])
def test_no_file(name: str, slow_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A format that does not exist, or a folder, is one sentence and status 2."""
    assert main(["table", str(slow_run), "-o", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_bundle(slow_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An evidence bundle is read as a slow_run, here and by `diagnose straggler`."""
    shutil.copytree(slow_run, tmp_path / "blackboxes")
    assert len(table(tmp_path, ":", tmp_path / "t.csv")) == len(table_of_run(slow_run))
    assert main(["diagnose", "straggler", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"] == [5]


def test_living_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Boxes that are being written give the steps that have ended so far; a full ring, the newest of them."""
    writers = [
        Writer(tmp_path, Identity(run="job", rank=rank, world_size=2), phases=PHASES, capacity=256)
        for rank in range(2)
    ]

    def run_until(steps: range) -> None:
        for writer in writers:
            forward = writer.name_number("forward")
            for step in steps:
                span = (100.0 + step, 100.5 + step)
                writer.append(RecordKind.PHASE, forward, *span, layout.STEP, 0, 0)
                writer.append(RecordKind.STEP, 0, *span, layout.STEP, step, 0)

    run = tmp_path / "job"
    run_until(range(10))
    assert np.unique(table(run, ":", tmp_path / "t.csv").step).tolist() == list(range(1, 10))
    run_until(range(10, 300))
    found = np.unique(table(run, "100:", tmp_path / "t.csv").step)
    assert found[0] > 150 and found[-1] == 299
    assert f"hold steps {found[0]} to 299" in capsys.readouterr().err
    for writer in writers:
        writer.unlock()
