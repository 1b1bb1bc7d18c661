"""`rankwatch logs` prints the newest lines of the ranks of a run, live, dead, or kept in a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankwatch.logs.lines import PREVIOUS_SUFFIX, SUFFIX, LineWriter, Source
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.logs import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of two ranks, which have written in turns."""
    directory = tmp_path / "job"
    directory.mkdir()
    writers = [LineWriter(Folder.open(directory), f"{rank}{SUFFIX}") for rank in range(2)]
    for step in range(3):
        for rank, writer in enumerate(writers):
            writer.write(f"train: loss {step}.{rank}", source=Source.LOG, severity=9, step=step)
    writers[1].write("\x1b[31mbad\x1b[0m\tone \x07\u202e", source=Source.STDERR, severity=0, step=2)
    return directory


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    assert main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_all_ranks(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By time, with rank, step and severity. Nothing in a line steers the terminal."""
    lines = printed(capsys, run)
    assert [line.split(" ", 1)[1] for line in lines] == [
        "rank 0 step 0 INFO train: loss 0.0",
        "rank 1 step 0 INFO train: loss 0.1",
        "rank 0 step 1 INFO train: loss 1.0",
        "rank 1 step 1 INFO train: loss 1.1",
        "rank 0 step 2 INFO train: loss 2.0",
        "rank 1 step 2 INFO train: loss 2.1",
        "rank 1 step 2 stderr bad\tone ??",
    ]


def test_one_rank_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest lines of one rank, unchanged."""
    entries = [json.loads(line) for line in printed(capsys, run, "--rank", 1, "--lines", 2, "--json")]
    assert [(each["rank"], each["source"], each["step"]) for each in entries] == [
        (1, "log", 2),
        (1, "stderr", 2),
    ]
    assert entries[1]["text"].startswith("\x1b[31m")


def test_previous(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of the process that had the rank before."""
    with pytest.raises(UserError, match="holds no log lines of an earlier attempt"):
        main([str(run), "--previous"])
    LineWriter(Folder.open(run), f"0{SUFFIX}")
    assert (run / f"0{PREVIOUS_SUFFIX}").exists()
    assert len(printed(capsys, run, "--previous")) == 3
    assert len(printed(capsys, run, "--rank", 0)) == 0


def test_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy in a bundle, whatever else stands in it."""
    logs = tmp_path / "logs"
    logs.mkdir()
    good = {"number": 0, "time": 1.0, "step": -1, "severity": 17, "source": "log", "text": "last words"}
    wrong = [
        {},
        [],
        good | {"time": 1e99},
        good | {"source": "x"},
        good | {"step": "y"},
        good | {"source": 3},
    ]
    text = "\n".join(map(json.dumps, [*wrong, good])) + "\nno json\n[[[["
    (logs / "5.lines.jsonl").write_text(text)
    assert printed(capsys, tmp_path) == ["00:00:01.000 rank 5 ERROR last words"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rank", "7"], "holds no lines of rank 7, but of 0-1"),
        (["--lines", "0"], "--lines is 0, expected 1 to 200"),
    ],
)
def test_wrong_use(run: Path, arguments: list[str], message: str) -> None:
    """One sentence says what is wrong."""
    with pytest.raises(UserError, match=message):
        main([str(run), *arguments])


def test_unusable_files(run: Path) -> None:
    """A file that holds no lines, and a run without any."""
    (run / f"0{SUFFIX}").unlink()
    (run / f"0{SUFFIX}").write_text("no lines")
    with pytest.raises(UserError, match="holds no lines of a rank"):
        main([str(run)])
    (run / "empty").mkdir()
    with pytest.raises(UserError, match="RANKWATCH_LOG_LINES=0"):
        main([str(run / "empty")])


def test_linked_logs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link in a run's folder does not lead to the copied lines of somebody else."""
    copied = tmp_path / "bundle" / "logs"
    copied.mkdir(parents=True)
    line = {"number": 0, "time": 1.0, "step": 0, "severity": 9, "source": "log", "text": "of another"}
    (copied / f"0{SUFFIX}.jsonl").write_text(json.dumps(line))
    assert "of another" in printed(capsys, copied.parent)[0]
    (run / "logs").symlink_to(copied)
    assert len(printed(capsys, run)) == 7


def test_many_ranks(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All lines together take bounded memory, however many files of ranks there are."""
    monkeypatch.setattr("rankwatch_cli.commands.logs._MOST_LINES", 5)
    assert main([str(run)]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 4
    assert shown.err == "2 ranks: the newest 2 lines of each; --rank N shows more\n"
