"""The real agent on a fixed tree of /proc and /sys serves exactly what the golden file holds."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support_agent import AgentProcess, agent_process, fetch, until

HERE = Path(__file__).parent
GOLDEN = HERE / "fixtures" / "metrics.golden"

_CHANGING = ("process_", "rankwatch_agent_info", "_duration_seconds{", "_timestamp_seconds{")
"""Samples whose value is of the moment or of the version."""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """An agent whose collectors have run exactly once."""
    fixtures = HERE / "fixtures"
    flags = {
        "--procfs": str(fixtures / "proc"),
        "--sysfs": str(fixtures / "sys"),
        "--collectors": "host,network,tcp",
        "--intervals-seconds": "host=3600,network=3600,tcp=3600",
        "--node": "node-1",
        "--cluster": "test",
    }
    words = [word for flag in flags.items() for word in flag]
    with agent_process(tmp_path_factory.mktemp("agent"), *words) as running:
        until(lambda: fetch(running.address, "/readyz").status == 200, "the agent is ready")
        yield running


def test_metrics_are_those_of_the_golden_file(agent: AgentProcess, request: pytest.FixtureRequest) -> None:
    """`pytest tests/agent --rewrite-golden` writes the file anew."""
    served = fetch(agent.address, "/metrics").body.decode()
    lines = [line for line in served.splitlines() if not _changes(line)]
    text = "\n".join(lines) + "\n"
    if request.config.getoption("--rewrite-golden", default=False):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_promtool_finds_nothing_to_complain_about(agent: AgentProcess) -> None:
    """Names, types and help texts follow Prometheus's rules."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it comes with Debian's package prometheus")
    body = fetch(agent.address, "/metrics").body
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def _changes(line: str) -> bool:
    if line.startswith("#"):
        return "process_" in line
    return any(part in line for part in _CHANGING)
