"""The real agent with a source that hangs for ever."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from support_agent import agent_process, fetch, until

FIXTURES = Path(__file__).parent / "fixtures"
LATE = 'rankwatch_collector_runs_total{collector="host",node="n",outcome="deadline"} 1.0\n'


def test_a_source_that_hangs_costs_its_own_series_and_does_not_keep_the_agent_from_ending(
    tmp_path: Path,
) -> None:
    """Opening a FIFO nobody writes to blocks like a dead file server; the other collectors are served."""
    procfs = tmp_path / "proc"
    shutil.copytree(FIXTURES / "proc", procfs)
    (procfs / "loadavg").unlink()
    os.mkfifo(procfs / "loadavg")
    flags = [
        "--node",
        "n",
        "--procfs",
        str(procfs),
        "--sysfs",
        str(FIXTURES / "sys"),
        "--collectors",
        "host,network,tcp",
    ]
    with agent_process(tmp_path, *flags, "--deadlines-seconds", "host=0.1") as agent:

        def metrics() -> str:
            return fetch(agent.address, "/metrics").body.decode()

        until(lambda: LATE in metrics(), "the hang is noticed")
        until(lambda: "rankwatch_tcp_timeouts_total" in metrics(), "another collector has run")
        assert "rankwatch_host_cpus" not in metrics()
        ready = fetch(agent.address, "/readyz")
        assert (ready.status, ready.body) == (503, b"waiting for the first run of: host\n")
        status, log = agent.stop()
    assert status == 0
    assert "collector host has run past its deadline of 0.1 s" in log
