"""Traces of slow steps, on request."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rankwatch
from rankwatch import profiler, profiling
from rankwatch.profiling import traces_beside
from support.jobs.forked_ranks import shared_ranks
from support.training.blackbox import box, now

COUNT = 3


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[rankwatch.Run]:
    """A run that keeps three traces. It looks for requests after every step."""
    monkeypatch.setenv("RANKWATCH_PROFILE_ON_SLOW", str(COUNT))
    monkeypatch.setattr(profiler, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(profiler, "_WINDOW_STEPS", 6)
    run = rankwatch.start(run="job", rank=0, world_size=1, directory=tmp_path, flight_recorder=False)
    assert isinstance(run, rankwatch.Run)
    yield run
    run.finish()


def train(run: rankwatch.Run, steps: int, *, slow: tuple[int, ...] = ()) -> torch.Tensor:
    """Steps that multiply matrices; `slow` are the numbers of those that also sleep."""
    value = torch.ones(8, 8)
    for _ in range(steps):
        with run.step():
            value = value @ torch.full((8, 8), 0.125)
            if run._steps.current in slow:
                time.sleep(0.3)
    return value


def errors(tmp_path: Path) -> int:
    return now(box(tmp_path)).errors


def test_slowest_steps(profiled: rankwatch.Run, tmp_path: Path) -> None:
    """After a request, the slowest steps of a window are kept, as traces that hold just them. The first step
    is the profiler's warm-up."""
    profiling.request(tmp_path, "job", 0)
    train(profiled, 20, slow=(1, 3, 5, 6))
    traces = traces_beside(box(tmp_path))
    assert [each.name for each in traces] == [f"rank0_step{step:09}.json.gz" for step in (3, 5, 6)]
    for each, step in zip(traces, (3, 5, 6), strict=True):
        events = json.loads(gzip.decompress(each.read_bytes()))["traceEvents"]
        names = [event.get("name") for event in events]
        assert f"ProfilerStep#{step}" in names and names.count("aten::mm") == 1
        assert each.stat().st_mode & 0o777 == 0o644
    assert errors(tmp_path) == 0


def test_links(tmp_path: Path) -> None:
    """Traces of a folder that a link leads to are those of somebody else, and none of this rank."""
    run = tmp_path / "job"
    (run / "1.profile").mkdir(parents=True)
    (run / "1.profile" / "a.json.gz").touch()
    (run / "0.profile").symlink_to("1.profile")
    (tmp_path / "link").symlink_to("job")
    assert traces_beside(run / "1.blackbox") == [run / "1.profile" / "a.json.gz"]
    assert traces_beside(run / "0.blackbox") == traces_beside(tmp_path / "link" / "1.blackbox") == []


def test_off_by_default(run: rankwatch.Run, tmp_path: Path) -> None:
    """Without the setting a request does nothing."""
    profiling.request(tmp_path, "test", 0)
    train(run, 20)
    assert traces_beside(box(tmp_path)) == []


def test_without_request(profiled: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request, no profiler. A request for another rank or of an earlier run is none."""
    monkeypatch.setattr(torch.profiler, "profile", None)
    profiling.request(tmp_path, "job", 1)
    os.utime(profiling.request(tmp_path, "job", 0), (1e9, 1e9))
    train(profiled, 10)
    assert errors(tmp_path) == 0


def test_untrusted_user(profiled: rankwatch.Run, tmp_path: Path) -> None:
    """A request of a user whom the rank does not believe is none, even under the name of one it believes."""
    if os.geteuid() != 0:
        pytest.skip("only root can make files of two users")
    os.chown(profiling.request(tmp_path, "job", 0), 65534, 65534)
    profiling.request_path(tmp_path, "job", 0, 65534).touch()
    train(profiled, 12)
    assert traces_beside(box(tmp_path)) == []


def test_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks looks at a bounded number of names, however many others have put there."""
    names = iter(range(1 << 17))
    monkeypatch.setattr(profiling.Folder, "names", lambda folder: map(str, names))
    assert profiling.request(tmp_path, "job", 0).exists()
    assert next(names) == 1 << 16


def test_end_of_the_run(profiled: rankwatch.Run, tmp_path: Path) -> None:
    """A run that ends in the window keeps what it has."""
    profiling.request(tmp_path, "job", 0)
    train(profiled, 4)
    profiled.finish()
    assert len(traces_beside(box(tmp_path))) == 2
    assert not torch.autograd._profiler_enabled()


def test_failing_profiler(profiled: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on, the failure is counted, and the profiler is not tried again."""
    monkeypatch.setattr(torch.profiler.profile, "stop", lambda self: 1 / 0)
    profiling.request(tmp_path, "job", 0)
    try:
        train(profiled, 12)
        assert errors(tmp_path) >= 1
        assert traces_beside(box(tmp_path)) == []
    finally:
        monkeypatch.undo()
        torch.autograd.profiler._disable_profiler() if torch.autograd._profiler_enabled() else None


@pytest.mark.parametrize("before", [3, 0])
def test_own_profiler(profiled: rankwatch.Run, tmp_path: Path, before: int) -> None:
    """The script's own profiler works as if there were no other: ours gives way, and a request that comes
    while the other one records is not served."""
    profiling.request(tmp_path, "job", 0)
    train(profiled, before)
    assert torch.autograd._profiler_enabled() == (before > 0)
    with torch.profiler.profile() as own:
        train(profiled, 5)
    assert sum(each.count for each in own.key_averages() if each.key == "aten::mm") == 5
    if before:
        train(profiled, 12)
    assert traces_beside(box(tmp_path)) == []


def test_large_traces(profiled: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace beyond the limit is removed at once."""
    monkeypatch.setattr(profiler, "MOST_BYTES", 100)
    profiling.request(tmp_path, "job", 0)
    train(profiled, 20)
    folder = box(tmp_path).with_suffix(profiling.SUFFIX)
    assert [*folder.iterdir()] == []


def test_number_of_requests(profiled: rankwatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank serves few requests in its life, whoever goes on asking."""
    monkeypatch.setattr(profiler, "_COARSE_SECONDS", 0.0)
    served = []
    monkeypatch.setattr(profiler.SlowStepProfiler, "_requested", lambda self: served.append(1) is None)
    train(profiled, 200)
    assert len(served) == profiling.MOST_REQUESTS


@pytest.mark.process
def test_same_result(tmp_path: Path) -> None:
    """Losses and weights are bit for bit those without the profiler."""
    code = (
        "import sys, torch, rankwatch\n"
        "from pathlib import Path\n"
        "from rankwatch import profiler, profiling\n"
        "torch.manual_seed(1)\n"
        "profiler._LOOK_SECONDS = 0.0\n"
        f"run = rankwatch.start(run='job', rank=0, directory={str(tmp_path)!r}, flight_recorder=False)\n"
        f"profiling.request(Path({str(tmp_path)!r}), 'job', 0)\n"
        "model = torch.nn.Linear(8, 8)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(30):\n"
        "    with run.step():\n"
        "        optimizer.zero_grad()\n"
        "        loss = torch.nn.functional.dropout(model(torch.randn(4, 8))).square().mean()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "    print(loss.item().hex(), file=open(sys.argv[1], 'a'))\n"
        "print(model.weight.tolist(), file=open(sys.argv[1], 'a'))\n"
    )
    printed = []
    for setting in ("", "3"):
        environ = {**os.environ, "RANKWATCH_PROFILE_ON_SLOW": setting}
        log, out = tmp_path / "log", tmp_path / f"printed{setting}"
        assert shared_ranks().run(["-c", code, str(out)], environ, ranks=1, log=log) == [0], log.read_text()
        printed.append(out.read_text())
    assert printed[0] == printed[1]
    assert len(traces_beside(tmp_path / "job" / "0.blackbox")) == COUNT


@pytest.mark.parametrize("setting", ["many", "0.5", "11", "-1"])
def test_bad_setting(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what was expected; the run is recorded all the same."""
    monkeypatch.setenv("RANKWATCH_PROFILE_ON_SLOW", setting)
    run = rankwatch.start(run="job", directory=tmp_path, flight_recorder=False, collectives=False)
    with run, run.step():
        pass
    assert f"RANKWATCH_PROFILE_ON_SLOW is '{setting}', expected 1 to 10: no step is profiled" in caplog.text
