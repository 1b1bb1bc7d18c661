"""Tables and logs of losses, of all sorts; bad rows are counted, bad files told in one sentence."""

from __future__ import annotations

import gzip
import signal
import tracemalloc
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.detection import diagnose
from rankwatch_diagnosis.loss.reading import (
    MAX_LINE_BYTES,
    ReadCounts,
    StepValues,
    default_extract,
    delimiter_of,
    extract_by,
    read_lines,
    read_log,
    read_table,
)


def rows_of(text: str, **columns: str) -> tuple[list[StepValues], ReadCounts]:
    counts = ReadCounts()
    header, *lines = text.splitlines(keepends=True)
    delimiter = delimiter_of(header) or ","
    return list(read_table(header, lines, counts, delimiter=delimiter, columns=columns)), counts


@pytest.mark.parametrize(
    "line",
    [
        "step 12 something loss 3.4",
        "[2026-01-01] global_step=12, train_loss=3.4, lr=1e-4",
        " iteration       12/  500000 | consumed samples: 96 | lm loss: 3.4E+00 | loss scale: 65536.0 |",
        "iter 12: loss 3.4000, time 33.1ms, mfu 12.0%",
        '{"step": 12, "eval_loss": 9.9, "loss": 3.4}',
        "Epoch 1 Step [12/100] val loss: 9.9 train loss: 3.4",
        "\x1b[31mstep: 12  \x1b[32mloss:  3.4000  \x1b[33mgrad_norm:  1.5\x1b[39m",
        "loss tensor(3.4, device='cuda:0') at step #12",
    ],
)
def test_default_pattern(line: str) -> None:
    """It finds step and loss as many trainers write them, and leaves the losses of evaluation alone."""
    (row,) = read_log([line], ReadCounts(), extract=default_extract)
    assert (row.step, row.loss) == (12, 3.4)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step 12/99  held-out loss 3.4",
        "tokens/step: 500 loss 3.4",
        "step 12 val loss 3.4",
        "loss info at step 12",
        "step_time 12 loss 3",
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    """A line that reports no step passes by. It is no bad row: a log holds other things."""
    counts = ReadCounts()
    assert list(read_log([line], counts, extract=default_extract)) == []
    assert counts.skipped == 0


@pytest.mark.parametrize(
    "line", ["step" + " " * 16000, "step 1 loss " + "1" * 16000 + "x", "loss step " * 1600]
)
def test_confusing_line_takes_no_time(line: str) -> None:
    """A line made to confuse takes no time. A pattern that goes back and forth over it would take minutes."""
    assert list(read_log([line], ReadCounts(), extract=default_extract)) == []


def test_default_pattern_finds_norms() -> None:
    """The default pattern finds norms and loss scale. They move before the loss does."""
    line = "step 7 loss: nan | loss scale: 1024.0 | grad norm: inf | update_norm: 0.5"
    (row,) = read_log([line], ReadCounts(), extract=default_extract)
    assert row[2:] == (float("inf"), 0.5, 1024.0)
    assert row.loss != row.loss


def test_user_pattern() -> None:
    """A pattern of the user finds its groups. Text where a number belongs is skipped and counted."""
    counts = ReadCounts()
    extract = extract_by(r"n(?P<step>\S+) L(?P<loss>\S+)(?: G(?P<grad_norm>\S+))?")
    lines = ["n5 L2.5 G1.5", "n6 L2.25", "nothing", "n7 Lbad", "n-1 L2"]
    assert list(read_log(lines, counts, extract=extract)) == [StepValues(5, 2.5, 1.5), StepValues(6, 2.25)]
    assert counts.skipped == 2


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is no regular expression"),
        (r"(?P<loss>\d+)", "no group (?P<step>"),
        ("x", "no group (?P<step>"),
    ],
)
def test_unusable_pattern(pattern: str, message: str) -> None:
    """A pattern that cannot be used is one sentence. One sentence says what it lacks."""
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace("?", r"\?")):
        extract_by(pattern)


def test_table() -> None:
    """It is read by its header in any order, case and quotation, and bad rows are counted."""
    rows, counts = rows_of(
        '"time","Loss","Step"\n1,2.5,3\n"1","2.25","4.0"\n1,,5\n1,x,6\n1,2,-1\n1,2,6.5\n1\n\n1,nan,7\n"1,2,8\n'
    )
    assert rows[:2] == [StepValues(3, 2.5), StepValues(4, 2.25)]
    assert [row.step for row in rows[2:]] == [7]
    assert counts.skipped == 6


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_delimiters(delimiter: str) -> None:
    """Other delimiters are seen in the header. Semicolons and tabs."""
    assert rows_of("step,loss,grad_norm\n1,2,3\n".replace(",", delimiter))[0] == [StepValues(1, 2.0, 3.0)]


def test_named_columns() -> None:
    """Columns of other names are named by the user. A row without a loss still has its norm."""
    rows, _ = rows_of("it,train/loss,gn\n1,2,3\n2,,4\n", step="it", loss="train/loss", grad_norm="gn")
    assert rows == [StepValues(1, 2.0, 3.0), StepValues(2, None, 4.0)]


def test_missing_column() -> None:
    """It is reported with the columns that are there, so that the person can name the right one."""
    with pytest.raises(UserError, match="no column 'loss'; its columns are 'step', 'train/loss'"):
        rows_of("step,train/loss\n1,2\n")


def test_gzip(tmp_path: Path) -> None:
    """Compressed files are known by their content, whatever their name; a byte order mark is left out."""
    path = tmp_path / "losses"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfstep,loss\n1,2\n2,2\n", mtime=0))
    assert diagnose(path).counts.rows == 2


def test_truncated_gzip(tmp_path: Path) -> None:
    """One that ends in the middle, as a dying machine leaves it, is judged up to there, and that is said."""
    path = tmp_path / "losses.csv.gz"
    whole = gzip.compress("".join(["step,loss\n", *(f"{n},{2 + n % 7}\n" for n in range(20000))]).encode())
    path.write_bytes(whole[: len(whole) // 2])
    found = diagnose(path)
    assert found.counts.truncated
    assert 1000 < found.counts.rows < 20000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0", "is binary or UTF-16"),
        ("step,loss\n1,2\n".encode("utf-16"), "is binary or UTF-16"),
        (gzip.compress(b"\0\1\2", mtime=0), "is binary or UTF-16"),
        (b"\x1f\x8bnonsense", "damaged"),
        (b"hello\nworld\n", "holds no step with a loss; expected CSV"),
        (b"step,loss\n1,x\n2,y\n", "holds no step with a loss; 2 rows were skipped"),
        (b"step,loss\n", "holds no step with a loss"),
        (b"x" * 100_000, "1 rows were skipped"),
    ],
)
def test_file_without_losses(tmp_path: Path, content: bytes, message: str) -> None:
    """A file without losses is one sentence. Never a traceback, never `no anomaly`."""
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        diagnose(path)


def test_unreadable_file(tmp_path: Path) -> None:
    """A file that cannot be read is one sentence. A directory, or nothing at all."""
    with pytest.raises(UserError, match=r"could not read .*: Is a directory"):
        diagnose(tmp_path)
    with pytest.raises(UserError, match=r"could not read .*: No such file"):
        diagnose(tmp_path / "absent.csv")


def test_long_line_is_skipped(tmp_path: Path) -> None:
    """A line beyond the limit is skipped and takes no memory, in a file of one line of gigabytes."""
    path = tmp_path / "wide.csv"
    wide = b"9" * (1000 * MAX_LINE_BYTES)
    path.write_bytes(b"step,loss\n1,2\n" + wide + b"\n3,2\n")
    counts = ReadCounts()
    tracemalloc.start()
    try:
        lines = list(read_lines(path, counts))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (lines, counts.skipped) == (["step,loss\n", "1,2\n", "3,2\n"], 1)
    assert peak < 1_000_000


def test_endless_lines_without_loss(tmp_path: Path) -> None:
    """Lines without end and without a loss are given up. A small gzip can hold a billion blank lines."""
    path = tmp_path / "blank.csv.gz"
    path.write_bytes(gzip.compress(b"step,loss\n" + b"\n" * 5000))
    with pytest.raises(UserError, match="no step with a loss in its first 1,000 lines"):
        list(read_lines(path, ReadCounts(), most_fruitless=1000))
    assert len(list(read_lines(path, ReadCounts(losses=1), most_fruitless=1000))) == 5001


def test_backtracking_pattern_is_given_up(tmp_path: Path) -> None:
    """It is given up at the line it could not get past; the signal that ended it is as it was."""
    path = tmp_path / "train.log"
    path.write_text("step 1 loss 2\n" * 1000 + "a" * 27 + "!\n" + "step 2 loss 2\n")
    pattern = r"step (?P<step>\d+) loss (?P<loss>\S+)|^(a+)+$"
    before = signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(UserError, match=r"--pattern takes more than 0\.02 s on the line 'aaaa"):
        diagnose(path, pattern=pattern, match_seconds=0.02)
    assert signal.getsignal(signal.SIGVTALRM) == before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_time_limit_is_per_line(tmp_path: Path) -> None:
    """A long file of simple lines is not given up: the limit is that of a line."""
    path = tmp_path / "train.log"
    path.write_text("".join(f"step {step} loss 2 {'x' * 1000}\n" for step in range(20_000)))
    verdict = diagnose(path, pattern=r"step (?P<step>\d+) loss (?P<loss>\S+)", match_seconds=0.02)
    assert verdict.counts.losses == 20_000
