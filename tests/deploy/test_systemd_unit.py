"""The systemd unit, its drop-ins and its settings file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rankwatch_agent.runtime.config import load_config
from support.deploy.chart import DEPLOY

UNIT = DEPLOY / "rankwatch-agent.service"
DROP_INS = sorted((DEPLOY / "drop-ins").glob("*.conf"))
MOST_EXPOSURE = 25
"""Of systemd's scale from 0 to 100, what it must stay under: what is left is devices, network and /proc."""


def directives(path: Path) -> dict[str, list[str]]:
    """Name -> values, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here."""
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/rankwatch/bin/rankwatch", "/bin/true"))
    return path


def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    """No unknown directive, no value it ignores."""
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_calls_the_exposure_low(unit: Path) -> None:
    """As it is installed."""
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(unit))
    assert done.returncode == 0, done.stdout


def test_it_has_no_user_to_become_and_no_capability() -> None:
    """Whatever the node, unless a drop-in says so."""
    found = directives(UNIT)
    assert found["DynamicUser"] == ["yes"]
    assert found["NoNewPrivileges"] == ["yes"]
    assert (found["CapabilityBoundingSet"], found["AmbientCapabilities"]) == ([""], [""])
    assert found["ProtectSystem"] == ["strict"]
    assert found["PrivateTmp"] == ["yes"]


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_a_drop_in_gives_capabilities_and_nothing_else(drop_in: Path, unit: Path) -> None:
    """Those it names, to a service that systemd still finds sound."""
    found = directives(drop_in)
    assert set(found) == {"CapabilityBoundingSet", "AmbientCapabilities"}
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"]
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    shutil.copy(drop_in, folder)
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_it_reaches_gpus_the_kernel_log_and_black_boxes() -> None:
    """And no other device; in /dev/shm it may write nowhere else."""
    found = directives(UNIT)
    assert found["DevicePolicy"] == ["closed"]
    assert found["DeviceAllow"] == ["char-195 rw", "char-nvidia* rw", "/dev/kmsg r"]
    assert found["ReadOnlyPaths"] == ["/dev/shm"]
    assert found["ReadWritePaths"] == ["/dev/shm/rankwatch"]


def test_it_is_bounded_and_a_mistake_in_the_settings_is_not_tried_again() -> None:
    """Anything else is, after a pause."""
    found = directives(UNIT)
    assert (found["MemoryMax"], found["CPUQuota"], found["TimeoutStopSec"]) == (["512M"], ["100%"], ["10"])
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == ["2"]


def test_the_settings_file_is_one_the_agent_reads() -> None:
    """Where the unit says it lies."""
    assert directives(UNIT)["ExecStart"][0].endswith("rankwatch agent --config /etc/rankwatch/agent.toml")
    config = load_config(flags={}, environ={}, file=DEPLOY / "agent.toml").values
    assert config.listen == "0.0.0.0:9477"
