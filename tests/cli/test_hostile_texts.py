"""No command lets a name or text of somebody else steer the terminal of whoever runs it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench.simulation.hang import HangFault, HangKind
from bench.simulation.hang_job import HangJob, simulate_hang, write_snapshots
from bench.simulation.program import JobShape
from rankwatch_cli.main import commands_for, main
from support.diagnosis.kineto import GpuJob, write_traces
from support.paths import ROOT
from support.training.ranks import go_on, rank

pytestmark = pytest.mark.process

EVIL = "\x1b]0;x\x07\x7f\nFORGED\r\u202e\x9b2J\u2028\u200b"
SAME_LENGTH = "Q" * len(EVIL.encode())
"""Stands in names and texts of the run until it is replaced in its files."""
EVIL_PHASE = "\x1b\nF\u202e\x9b"
"""As long as `backward` in UTF-8."""
STEERING = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u200b\u202e\u2028"} - {"\n", "\t"}
PROGRAM = f"""
import logging
logging.basicConfig()
name = {SAME_LENGTH!r}
for number in range(40):
    with run.step():
        with run.phase("forward"):
            time.sleep(0.001)
        with run.phase("backward"):
            time.sleep(0.001)
        run.scalar("loss", 2.0 if number < 30 else float("nan"))
        run.scalar(name, 1.0)
        run.work(**{{name: 64}})
try:
    with run.checkpoint("save", step=39, path="/data/" + name) as save:
        with save.stage(name):
            pass
        raise OSError(name)
except OSError:
    pass
print(name, file=sys.stderr)
logging.error(name)
ready()
run.fail(type(name, (ValueError,), {{}})(name))
ready()
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of black boxes with one run, in which every name and text is evil."""
    made, forged = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("forged")
    for number in range(2):
        before = "os.environ['RANKWATCH_LOG_LINES'] = '1'"
        with rank(made, PROGRAM, run=SAME_LENGTH, number=number, world=2, before=before) as process:
            go_on(process)
    (folder,) = (each for each in made.iterdir() if each.is_dir())
    (forged / EVIL).mkdir()
    for path in folder.iterdir():
        raw = path.read_bytes().replace(SAME_LENGTH.encode(), EVIL.encode())
        raw = raw.replace(b"backward", EVIL_PHASE.encode())
        if path.suffix == ".checkpoints":
            raw = (
                json.dumps(json.loads(path.read_text().replace(SAME_LENGTH, "?")))
                .replace("?", "\\u009b")
                .encode()
            )
        (forged / EVIL / path.name).write_bytes(raw)
    return forged


def commands(run: str, folder: Path) -> Iterator[list[str]]:
    """Every command that reads what others write, as text and as JSON."""
    for words in (
        ["ls"],
        ["diagnose", "run", run],
        ["goodput", run],
        ["logs", run],
        ["diagnose", "hang", run],
    ):
        yield from (words, [*words, "--json"])
    for words in (["diagnose", "loss", run], ["diagnose", "straggler", run], ["compare", run, run]):
        yield from (words, [*words, "--json"])
    yield from (["summary", run], ["blackbox", run, "--records", "1000"], ["report", run])
    yield from (["table", run], ["trace", run, "--chrome", "-"], ["profile", run, "--rank", "0"])
    yield from (["blackbox", f"{EVIL}-none"], ["diagnose", "run", EVIL[:3]], ["logs", run, "--rank", "7"])
    traces = folder / EVIL
    write_traces(traces, GpuJob(ranks=2, steps=3))
    for trace in traces.iterdir():
        trace.write_text(trace.read_text().replace("nccl", json.dumps(EVIL)[1:-1] + "nccl"))
    yield from (["diagnose", "trace", str(traces)], ["diagnose", "trace", str(traces), "--by-rank", "--json"])
    dumps = folder / "dumps" / "flight_recorder"
    hang = HangJob(shape=JobShape(data_parallel=2), fault=HangFault(kind=HangKind.KILLED))
    write_snapshots(simulate_hang(hang).snapshots, dumps, "json")
    for dump in dumps.iterdir():
        dump.write_text(dump.read_text().replace("DATA_PARALLEL_GROUP", json.dumps(EVIL)[1:-1]))
    yield from (["diagnose", "hang", str(dumps)], ["diagnose", "hang", str(dumps), "--json"])
    for words in (["checkpoint", "verify"], ["checkpoint", "newest"]):
        yield from ([*words, str(traces)], [*words, str(traces), "--json"])
    alert = {"labels": {"alertname": "RankwatchRunSlow", "run": EVIL}, "annotations": {"description": EVIL}}
    yield from (["runbook", "runslow", "--alert", json.dumps(alert)], ["runbook", EVIL])
    yield from (
        ["generate", "--merge-into", str(traces / "none")],
        ["run", "--", EVIL],
        ["agent", "--config", str(traces / "none")],
        ["reference", EVIL],
        ["demo", EVIL],
    )


def test_every_command(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Nothing that steers a terminal is printed, and no name makes a line of its own."""
    monkeypatch.setenv("RANKWATCH_DIR", str(base))
    tried, named = set(), 0
    for words in commands(str(base / EVIL), tmp_path):
        tried.add(words[0])
        with suppress(SystemExit):
            main(words)
        printed = capfdbinary.readouterr()
        for text in (printed.out.decode(), printed.err.decode()):
            assert not STEERING & set(text), words
            named += "FORGED" in text
            assert not any(line.startswith("FORGED") for line in text.splitlines()), words
    assert tried == set(commands_for(()))
    assert named > 30, "the names are shown"


@pytest.mark.parametrize("name", ["r$(touch owned)", "a b", "-rf", "`id`", "a;b", "$HOME"])
def test_suggested_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It can be copied into a shell: whatever the run's name, it is diagnosed and nothing else happens."""
    with rank(tmp_path / "boxes", PROGRAM, world=2) as process:
        go_on(process)
    (tmp_path / "boxes" / "job").rename(tmp_path / "boxes" / name)
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path / "boxes"))
    assert main(["summary", str(tmp_path / "boxes" / name)]) == 0
    suggested = capsys.readouterr().out.splitlines()[-1].partition("next")[2].strip()
    assert suggested.startswith("rankwatch diagnose run ")
    command = f'rankwatch() {{ {shlex.quote(sys.executable)} -m rankwatch_cli "$@"; }}; {suggested}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("FAILED")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["boxes"]


def test_one_writer() -> None:
    """Commands print by `rankwatch_cli.output` alone, which makes each line printable."""
    for path in (ROOT / "cli" / "rankwatch_cli").rglob("*.py"):
        text = path.read_text()
        assert "print(" not in text or path.name == "output.py", path
