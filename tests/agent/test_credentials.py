"""Credentials that a program puts into URLs and messages stay in the program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch.checkpoint_paths import read_checkpoints
from rankwatch_agent.training.collector import RanksCollector
from support.agent.process import agent_process, page, rankwatch, until
from support.incidents.incidents import boxed, incident, writer
from support.processes.users import ALICE, become, node_directory
from support.training.ranks import go_on, rank, values

__all__ = ["node_directory"]

pytestmark = pytest.mark.process

SECRET = "S3CR3TPW"
FAILURE = "rankwatch_checkpoint_last_failure_info"
END = "rankwatch_run_attempt_end_timestamp_seconds{"
FAILS = f"""
url = "https://user:{SECRET}@store/ck?X-Amz-Signature={SECRET}"
steps(3)
try:
    with run.checkpoint("save", step=3, path=url):
        raise OSError(f"could not write {{url}} (Authorization: Bearer {SECRET}{SECRET})")
except OSError as error:
    run.fail(error)
ready()
"""


def texts(folder: Path) -> Iterator[tuple[Path, bytes]]:
    """Every file below a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path, path.read_bytes()


def test_nowhere(tmp_path: Path) -> None:
    """A save to a signed URL that fails leaves neither password nor signature in box, note, metrics, traces,
    log, evidence or what commands print; the rest of the sentence is there."""
    boxes, traces, evidence = tmp_path / "blackboxes", tmp_path / "traces.jsonl", tmp_path / "evidence"
    flags = ("--collectors", "ranks,traces,incidents", "--traces-file", str(traces), "--cluster", "c")
    with rank(boxes, FAILS) as process, agent_process(tmp_path, *flags) as agent:
        until(lambda: FAILURE in page(agent.address), "the failure is exported")
        go_on(process)
        process.wait()
        until(lambda: END in page(agent.address), "the attempt has ended")
        metrics = page(agent.address)
        _, log = agent.stop()
        evidence.mkdir()
        writer().write(incident([boxed(boxes / "job" / "0.blackbox")]), evidence)
        printed = [
            rankwatch(*words, str(boxes / "job")).stdout
            for words in (("blackbox",), ("summary",), ("diagnose", "run"), ("report",), ("goodput",))
        ]
    assert 'path="https://store/ck"' in metrics and "could not write https://store/ck" in metrics
    assert all("could not write https://store/ck" in each for each in printed[:2])
    for name, text in {"metrics": metrics, "log": log, "printed": "\n".join(printed)}.items():
        assert SECRET not in text, name
    assert traces.stat().st_size and list(texts(evidence))
    for folder in (boxes, evidence, tmp_path / "state", tmp_path):
        assert [path for path, content in texts(folder) if SECRET.encode() in content] == []


def test_of_an_earlier_version(tmp_path: Path) -> None:
    """A rank whose rankwatch writes credentials into its box and note still publishes none of them."""
    old = (
        "from rankwatch import checkpoint_paths; from rankwatch.untrusted import text\n"
        "text.redacted = checkpoint_paths.redacted_place = lambda each: each"
    )
    with rank(tmp_path, FAILS, before=old) as process:
        go_on(process)
        process.wait()
    box = tmp_path / "job" / "0.blackbox"
    assert all(SECRET in each.read_text(errors="replace") for each in (box, box.with_suffix(".checkpoints")))
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    writer().write(incident([boxed(box)]), evidence)
    found = RanksCollector(directory=tmp_path).collect()
    assert not [each for each in found.series if any(SECRET in label for label in each.labels)]
    assert read_checkpoints(box.with_suffix(".checkpoints"))[0].path == "https://store/ck"
    kept = {path.suffix for path, content in texts(evidence) if SECRET.encode() in content}
    assert kept <= {".blackbox"}, "the copy of the box is what the rank wrote"


def test_of_another_user(node_directory: Path) -> None:
    """An agent that is root reads what a user hides from others, and publishes nothing of it."""
    before = f"{become(ALICE)}; os.umask(0o077)"
    with rank(node_directory, FAILS, before=before):
        note = node_directory / "job" / "0.checkpoints"
        assert (note.stat().st_uid, note.stat().st_mode & 0o777) == (ALICE, 0o600)
        assert note.read_text()
        found = RanksCollector(directory=node_directory).collect()
    assert not values(found, FAILURE)
    assert not any("store/ck" in label for each in found.series for label in each.labels)


def test_hidden_by_the_umask(tmp_path: Path) -> None:
    """The box is readable for all users of the node, and the metrics for all clients. Where the umask hides
    what a rank writes, they hold the type of its exception only, and no path; also if the agent is root."""
    with rank(tmp_path, FAILS, before="os.umask(0o077)") as process:
        collector = RanksCollector(directory=tmp_path)
        assert not values(collector.collect(), FAILURE)
        go_on(process)
        process.wait()
    box = tmp_path / "job" / "0.blackbox"
    assert (box.stat().st_mode & 0o777, box.with_suffix(".checkpoints").stat().st_mode & 0o777) == (
        0o444,
        0o600,
    )
    assert b"OSError" in box.read_bytes() and b"could not write" not in box.read_bytes()
    assert "https://store/ck" in box.with_suffix(".checkpoints").read_text(), "for the user it is there"
    assert not values(collector.collect(), FAILURE)
    box.with_suffix(".checkpoints").chmod(0o644)
    assert values(RanksCollector(directory=tmp_path).collect(), FAILURE), "the user has published it"
