"""The review of a run from its black boxes and from an evidence bundle."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

import rankwatch
from rankwatch_agent.runtime.errors import UserError
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.review.from_boxes import review_folder
from rankwatch_diagnosis.review.incidents import read_incident
from rankwatch_diagnosis.review.markdown import markdown
from rankwatch_diagnosis.review.model import EventKind
from rankwatch_diagnosis.review.page import review_page
from support.diagnosis.run_boxes import stalled_for
from support.fuzzing import NESTED


def trained(directory: Path, *, fails: bool = False) -> None:
    """A rank that saves twice, once in vain, and may end by an exception."""
    with rankwatch.start(run="job", directory=directory, rank=0) as run:
        for step in range(40):
            with run.step(), run.phase("forward"):
                run.scalar("loss", 5.0 - 0.01 * step)
        with run.checkpoint("save", step=39, path="/saved/39"):
            pass
        with pytest.raises(OSError, match="full"), run.checkpoint("save", step=40):
            raise OSError("full")
        if fails:
            raise ValueError("bad batch")


def test_failed_run(tmp_path: Path) -> None:
    """When it failed and by what, its checkpoints with their places, its loss, and what it cost in time."""
    with pytest.raises(ValueError, match="bad batch"):
        trained(tmp_path, fails=True)
    review = review_folder(tmp_path)
    assert (review.result, review.severity) == ("failed", Severity.CRITICAL)
    assert not review.running
    (failure,) = (each for each in review.events if each.kind is EventKind.FAILURE)
    assert (failure.rank, failure.text) == (0, "rank 0 failed: ValueError: bad batch")
    assert abs(failure.at - time.time()) < 60.0
    failed, saved = review.checkpoints
    assert (saved.step, saved.path, saved.failed) == (39, "/saved/39", 0)
    assert (failed.step, failed.failed) == (40, 1)
    assert [each.severity for each in review.events if each.kind is EventKind.CHECKPOINT] == [
        Severity.WARNING
    ]
    assert review.loss is not None
    assert len(review.loss.points) == 40
    assert review.goodput is not None
    assert review.goodput.requested > 0.0
    assert [each.rank for each in review.phases] == [0]
    assert any("alerts" in each for each in review.unseen)


def test_stalled_run(tmp_path: Path) -> None:
    """Whom it waits for, since when, and the evidence."""
    stalled_for(tmp_path / "run", 8.0)
    shutil.copytree(tmp_path / "run" / "job", tmp_path / "copy")
    review = review_folder(tmp_path / "copy", stall=5.0)
    assert (review.result, review.severity) == ("stalled", Severity.CRITICAL)
    assert "rank 1" in review.why
    (stall,) = (each for each in review.events if each.kind is EventKind.STALL)
    assert time.time() - 60.0 < stall.at < time.time()
    assert review.judgements[0].subject == "Waiting"
    assert any("rank 1" in each for each in review.judgements[0].evidence)


def write_manifest(folder: Path, opened: float, run: str = "job", **more: object) -> None:
    """The manifest of an evidence bundle."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {"run": run, "kind": "stall", "why": "no step", "node": "n0"}
    manifest_of = {**manifest, "opened_timestamp_seconds": opened, **more}
    (folder / "manifest.json").write_text(json.dumps(manifest_of))


def test_incidents_of_the_node(tmp_path: Path) -> None:
    """Those of this run and its time; another run of the same name has had others."""
    trained(tmp_path / "boxes")
    for name, run, opened in (
        ("1-job-stall", "job", time.time()),
        ("2-job-stall", "job", time.time() - 86_400.0),
        ("3-other-stall", "other", time.time()),
        ("4-broken", "job", float("nan")),
        ("5-broken", "job", 10**400),
    ):
        write_manifest(tmp_path / "evidence" / name, opened, run, verdict={"ranks": [3]})
    review = review_folder(tmp_path / "boxes", evidence=tmp_path / "evidence")
    (incident,) = (each for each in review.events if each.kind is EventKind.INCIDENT)
    assert (incident.text, incident.node) == ("stall: no step; the evidence names rank 3", "n0")
    assert "1-job-stall" in incident.source


def test_manifest_nested_too_deep(tmp_path: Path) -> None:
    """What is no text is none, at whatever depth."""
    for deep in NESTED:
        (tmp_path / "manifest.json").write_text(f'{{"opened_timestamp_seconds": 1e9, "why": {deep}}}')
        incident = read_incident(tmp_path)
        assert incident is None or incident.why == ""


PAGES = {
    "before.prom": 'rankwatch_gpu_xid_errors_total{node="n0",gpu="3",xid="79"} 0\n'
    'rankwatch_host_oom_kills_total{node="n0"} 4\n',
    "after.prom": 'rankwatch_gpu_xid_errors_total{node="n0",gpu="3",xid="79"} 2\n'
    'rankwatch_gpu_xid_last_timestamp_seconds{node="n0",gpu="3",xid="79"} 1e9\n'
    'rankwatch_xid_info{xid="79",meaning="fell off the bus",severity="critical"} 1\n'
    'rankwatch_host_oom_kills_total{node="n0"} 4\n',
}


def bundle(directory: Path) -> Path:
    """An evidence bundle of a run."""
    trained(directory / "boxes")
    found = directory / "20260101T000000Z-job-stall"
    shutil.copytree(directory / "boxes" / "job", found / "blackboxes" / "job")
    write_manifest(found, time.time(), missing=[{"what": "stacks", "why": "no py-spy"}])
    (found / "metrics").mkdir()
    for name, page in PAGES.items():
        (found / "metrics" / name).write_text(page)
    return found


def test_bundle(tmp_path: Path) -> None:
    """The incident, the events of the hardware around it, and what the bundle lacks."""
    review = review_folder(bundle(tmp_path))
    assert [each.text for each in review.events if each.kind is EventKind.INCIDENT] == ["stall: no step"]
    hardware = {each.text: each.severity for each in review.events if each.kind is EventKind.HARDWARE}
    assert hardware == {
        "2 XID errors of a GPU (gpu 3, xid 79)": Severity.WARNING,
        "XID 79 on GPU 3: fell off the bus": Severity.CRITICAL,
    }
    assert "stacks: no py-spy" in review.unseen
    assert "fell off the bus" in review_page(review)


@pytest.mark.parametrize("damaged", ["manifest.json", "metrics/after.prom", "blackboxes/job/0.checkpoints"])
def test_damaged_bundle(damaged: str, tmp_path: Path) -> None:
    """What can be read is reported, and the rest is said to be missing."""
    found = bundle(tmp_path)
    (found / damaged).write_bytes(b"\xff\x00{{")
    review = review_folder(found)
    assert review.result
    assert markdown(review)
    said = " ".join(review.unseen)
    assert "could not be read" in said or "no sense" in said or "checkpoints" in damaged


def test_nothing_to_read(tmp_path: Path) -> None:
    """One sentence."""
    with pytest.raises(UserError, match="no black box"):
        review_folder(tmp_path)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "0.blackbox").write_bytes(b"half")
    with pytest.raises(UserError, match="none of the 1 black boxes"):
        review_folder(tmp_path)
