"""`rankwatch report`: of a real Prometheus, of this node, and what it says where it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rankwatch
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.report import main
from support.servers.prometheus import backfill, prometheus

MINUTE = 60.0
LASTED = 120
"""Minutes of the run, which failed and ended an hour ago."""


def _history(end: float) -> Iterator[str]:
    """A run on two nodes: a slow rank for half an hour, then a GPU falls off the bus and the run fails."""
    start = end - LASTED * MINUTE
    series: dict[str, list[tuple[float, float]]] = {}

    def add(name: str, labels: str, minute: int, value: float) -> None:
        series.setdefault(f'{name}{{cluster="c",{labels}}}', []).append((start + minute * MINUTE, value))

    for minute in range(LASTED + 1):
        for rank, node in enumerate(("n0", "n1")):
            here, ranked = f'run="r",node="{node}"', f'run="r",node="{node}",rank="{rank}"'
            for state, share in {"productive": 0.7, "straggler": 0.2, "data": 0.1}.items():
                spent = minute * MINUTE * share
                add("rankwatch_goodput_seconds_total", f'{here},state="{state}"', minute, spent)
            add("rankwatch_run_attempt", here, minute, 0)
            add("rankwatch_run_world_size", here, minute, 2)
            add("rankwatch_run_attempt_start_timestamp_seconds", here, minute, start)
            add("rankwatch_rank_info", ranked, minute, 1)
            add("rankwatch_step", ranked, minute, 10 * minute)
            for phase, share in {"forward": 0.6, "communication": 0.4 - 0.3 * rank}.items():
                phased = f'{ranked},phase="{phase}"'
                add("rankwatch_step_phase_seconds_total", phased, minute, minute * MINUTE * share)
        add("rankwatch_scalar", 'run="r",node="n0",rank="0",name="loss"', minute, 5.0 - minute / 60)
        add("rankwatch_gpu_xid_errors_total", 'node="n1",gpu="3",xid="79"', minute, float(minute > 110))
        add("rankwatch_gpu_xid_errors_total", 'node="n9",gpu="0",xid="13"', minute, float(minute > 50))
        if 30 <= minute < 60:
            slow = 'alertname="RankwatchRunSlow",cause="slow_rank",product="rankwatch",owner="platform"'
            of_rank = 'alertstate="firing",severity="warning",run="r",rank="1",node="n1"'
            add("ALERTS", f"{slow},{of_rank}", minute, 1)
        if minute > 111:
            lost = 'alertname="RankwatchGpuFault",reason="lost",alertstate="firing",severity="critical",'
            lost += 'node="n1",gpu="3"'
            add("ALERTS", lost, minute, 1)
    ended = 'run="r",node="n0",attempt="0",outcome="failed",kind="exception"'
    add("rankwatch_run_attempt_end_timestamp_seconds", ended, LASTED, end)
    for name, points in series.items():
        yield from (f"{name} {value!r} {at:.3f}" for at, value in points)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with the history of a run."""
    directory = tmp_path_factory.mktemp("p")
    backfill(_history(time.time() - 60 * MINUTE), directory)
    with prometheus({"global": {"scrape_interval": "1h"}}, directory) as found:
        yield found


@pytest.mark.process
def test_from_prometheus(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alerts of the run and of its nodes, hardware of its nodes only, phases, loss, and what was lost."""
    page = tmp_path / "r.html"
    main(["r", "--prometheus", url, "--since", "1d"])
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("| 20")]
    assert [each.split("|")[2].strip() for each in rows] == [
        "attempt 1 starts with 2 ranks",
        "RankwatchRunSlow (cause slow_rank)",
        "1 XID errors of a GPU (gpu 3, xid 79)",
        "RankwatchGpuFault (gpu 3, reason lost)",
        "attempt 1 ends: failed: exception",
    ]
    assert "rank 1 on n1" in rows[1]
    assert ", for 3" in rows[1]  # 30 minutes and what Prometheus looks back
    assert "The first alert of the worst severity was RankwatchGpuFault" in text
    assert "| straggler | 0.8 | 20.0% |" in text
    assert "| 1 | n1 | 85.7% | 14.3% |" in text
    assert "xid 13" not in text
    main(["r", "--prometheus", url, "--since", "1d", "--html", str(page)])
    assert capsys.readouterr().out == ""
    drawn = page.read_text()
    assert '<polyline class="loss"' in drawn
    assert "http" not in drawn.replace("http-equiv", "").replace(url, "")


@pytest.mark.process
def test_unknown_run(url: str) -> None:
    """One sentence."""
    with pytest.raises(UserError, match="has no goodput of a run 's'"):
        main(["s", "--prometheus", url])


def test_of_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest run of the node, without a name; both files at once."""
    monkeypatch.setenv("RANKWATCH_DIR", str(tmp_path / "boxes"))
    with rankwatch.start(run="job", directory=tmp_path / "boxes", rank=0) as run, run.step():
        pass
    files = [tmp_path / "r.html", tmp_path / "r.md"]
    assert main(["--html", str(files[0]), "--markdown", str(files[1])]) == 0
    assert capsys.readouterr().out == ""
    assert files[0].read_text().startswith("<!DOCTYPE html>")
    assert files[1].read_text().startswith("# Run job: finished\n")


def test_mistakes(tmp_path: Path) -> None:
    """One sentence each."""
    with pytest.raises(UserError, match="--prometheus needs the name of a run"):
        main(["--prometheus", "http://127.0.0.1:9"])
    with pytest.raises(UserError, match="is no directory"):
        main([str(tmp_path / "nowhere")])
    with rankwatch.start(run="job", directory=tmp_path, rank=0):
        pass
    with pytest.raises(UserError, match="could not write"):
        main([str(tmp_path / "job"), "--html", str(tmp_path / "no" / "r.html")])
