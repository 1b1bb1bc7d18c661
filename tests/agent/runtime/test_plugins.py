"""What another distribution adds: a source of the agent, a command, a subject of the diagnosis."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.agent.process import agent_process, clean_environment, until
from support.servers.otlp import numbers, otlp_receiver

pytestmark = pytest.mark.process

ENTRIES = """
[rankwatch.sources]
toy = toy_source
host = toy_source
broken = toy_broken
[rankwatch.commands]
toy = toy_command
ls = toy_command
broken = toy_broken
absent = toy_absent
[rankwatch.subjects]
toy = toy_command
run = toy_command
broken = toy_broken
"""
SOURCE = """
from rankwatch.conventions.metrics import Kind, Label, Metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.source import source

WEAR = Metric(
    name="site_disk_wear_ratio", kind=Kind.GAUGE, unit="1", labels=(Label.DEVICE,), help="What smartctl says."
)


class Toy:
    name = "toy"

    def __init__(self, schedule):
        self.interval_seconds, self.deadline_seconds = schedule

    def collect(self):
        return Collection(series=[Series(WEAR, ("sda",), 0.5)])


@source(interval_seconds=21.0, deadline_seconds=3.0)
def toy(config, shared, schedule):
    yield Toy(schedule)
"""
WEAR = ("rankwatch.site.disk_wear", frozenset({("rankwatch.device", "sda")}))
"""As it goes over OTLP."""
COMMAND = """
HELP = "say what was given"


def main(arguments):
    print("toy", *arguments)
    return 3
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution as pip installs it, on the path of every Python that is started."""
    site = tmp_path / "site"
    about = site / "rankwatch_toy-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rankwatch-toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    (site / "toy_source.py").write_text(SOURCE)
    (site / "toy_command.py").write_text(COMMAND)
    (site / "toy_broken.py").write_text("raise OSError('no such device')\n")
    monkeypatch.setenv("PYTHONPATH", str(site))


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rankwatch_cli", *arguments]
    return subprocess.run(line, env=clean_environment(), capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("added")
def test_source(tmp_path: Path) -> None:
    """It is on the page with its schedule and its own metric, and goes over OTLP."""
    with otlp_receiver() as receiver:
        flags = ("--collectors", "toy", "--otlp-endpoint", receiver.url, "--otlp-interval-seconds", "0.1")
        with agent_process(tmp_path, *flags) as agent:
            until(lambda: "site_disk_wear_ratio{" in agent.page(), "the toy has run")
            found = agent.page()
            until(
                lambda: any(numbers(each.metrics()).get(WEAR) == 0.5 for each in list(receiver.exports)),
                "it is exported",
            )
    assert re.search(r'^site_disk_wear_ratio\{device="sda".*} 0.5$', found, re.MULTILINE)
    assert re.search(r'^rankwatch_collector_interval_seconds\{collector="toy".*} 21.0$', found, re.MULTILINE)


@pytest.mark.usefixtures("added")
def test_names_of_ours(tmp_path: Path) -> None:
    """Nobody takes the name of a source of ours."""
    with agent_process(tmp_path, "--collectors", "host") as agent:
        until(lambda: "rankwatch_host_memory" in agent.page(), "our own host has run")


@pytest.mark.usefixtures("added")
def test_broken_source() -> None:
    """One sentence names it, with exit status 2; left out it disturbs nobody."""
    done = command("agent", "--listen", "127.0.0.1:0")
    assert (done.returncode, done.stderr) == (
        2,
        "rankwatch agent: could not load toy_broken: no such device\n",
    )
    done = command("agent", "--print-config", "--disabled-collectors", "broken")
    assert done.returncode == 0


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("before", [(), ("diagnose",)], ids=["command", "subject"])
def test_command(before: tuple[str, ...]) -> None:
    """It is listed with its line, called with its arguments, and its exit status counts. A broken one says
    why. One that has a name of ours is not called."""
    listed = command(*before, "--help").stdout
    assert "  toy          say what was given\n" in listed
    assert "  broken       (could not load toy_broken: no such device)\n" in listed
    done = command(*before, "toy", "--a", "b")
    assert (done.returncode, done.stdout) == (3, "toy --a b\n")
    done = command(*before, "broken")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(": could not load toy_broken: no such device\n")
    assert "toy" not in command(*before, "run" if before else "ls", "--help").stdout
