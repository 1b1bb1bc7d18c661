"""The real agent with a source that hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.agent.process import AgentProcess, clean_environment, fetch, until
from support.paths import ROOT

pytestmark = pytest.mark.process

FIXTURES = ROOT / "tests" / "agent" / "fixtures"
LATE = 'rankwatch_collector_runs_total{collector="host",node="n",outcome="deadline"} 1.0\n'


def test_hung_source(tmp_path: Path) -> None:
    """It costs its own series only: other collectors are served, and the process still ends on SIGTERM."""
    address_file = tmp_path / "address"
    paths = [str(address_file), str(FIXTURES / "proc"), str(FIXTURES / "sys")]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.agent.hung", *paths],
        cwd=ROOT / "tests",
        env=clean_environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: address_file.exists() or process.poll() is not None, "the agent listens")
        agent = AgentProcess(process, address_file.read_text().strip())

        def metrics() -> str:
            return fetch(agent.address, "/metrics").body.decode()

        until(lambda: LATE in metrics(), "the hang is noticed")
        until(lambda: "rankwatch_tcp_sent_segments_total" in metrics(), "another collector has run")
        waited_for = b"waiting for the first run of: host\n"
        until(lambda: fetch(agent.address, "/readyz").body == waited_for, "only the hung one is waited for")
        assert fetch(agent.address, "/readyz").status == 503
        status, log = agent.stop()
    finally:
        process.kill()
        process.communicate()
    assert status == 0
    assert "collector host has run past its deadline of 0.1 s" in log
