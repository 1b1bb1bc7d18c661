"""The systemd unit, its drop-ins and its settings file."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rankwatch_agent.runtime.config import load_config
from rankwatch_agent.training.boxes.discovery import MAX_BOXES
from support.deploy.chart import DEPLOY, DROP_INS, ROOT, UNIT, directives

pytestmark = pytest.mark.process

MOST_EXPOSURE = 26
"""The most on systemd's scale from 0 to 100; devices, network, /proc and asking for the clock, which counts
as setting it, make up what is left."""


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


def test_systemd_accepts_the_unit(unit: Path) -> None:
    """No unknown directive, no value that it ignores."""
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_exposure(unit: Path) -> None:
    """systemd calls it low."""
    done = analyze("security", "--offline=true", f"--threshold={MOST_EXPOSURE}", str(unit))
    assert done.returncode == 0, done.stdout


def test_no_privilege() -> None:
    """A dynamic user without capabilities, unless a drop-in says otherwise."""
    found = directives(UNIT)
    assert found["DynamicUser"] == ["yes"]
    assert found["NoNewPrivileges"] == ["yes"]
    assert (found["CapabilityBoundingSet"], found["AmbientCapabilities"]) == ([""], [""])
    assert found["ProtectSystem"] == ["strict"]
    assert found["PrivateTmp"] == ["yes"]


SEEN = {"user-files": {"ProtectHome": ["read-only"], "BindReadOnlyPaths": ["/tmp -/var/tmp"]}}
"""What a drop-in shows of the node, besides its capabilities."""


@pytest.mark.parametrize("drop_in", DROP_INS, ids=lambda path: path.stem)
def test_drop_in(drop_in: Path, unit: Path) -> None:
    """It grants capabilities, shows what they are for, and nothing else; systemd accepts the unit with it."""
    found = directives(drop_in)
    assert found.pop("CapabilityBoundingSet") == found.pop("AmbientCapabilities")
    assert found == SEEN.get(drop_in.stem, {})
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    shutil.copy(drop_in, folder)
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_drop_ins_of_the_page(unit: Path) -> None:
    """systemd takes those that docs/systemd.md prints, together with the unit."""
    drop_ins = re.findall(r"```ini\n(.*?)```", (ROOT / "docs" / "systemd.md").read_text(), flags=re.DOTALL)
    assert len(drop_ins) == 2
    folder = unit.with_name(f"{unit.name}.d")
    folder.mkdir()
    for number, text in enumerate(drop_ins):
        (folder / f"{number}.conf").write_text(text)
    done = analyze("verify", str(unit))
    assert (done.returncode, done.stderr) == (0, "")


def test_programs_of_evidence() -> None:
    """py-spy lies beside the agent, and reads another process with one system call."""
    found = directives(UNIT)
    (start,) = found["ExecStart"]
    assert found["Environment"][0].startswith(f"PATH={Path(start.split()[0]).parent}:")
    assert "process_vm_readv" in found["SystemCallFilter"][0].split()


def test_devices_and_writable_paths() -> None:
    """GPUs, the kernel log and black boxes, and no other."""
    found = directives(UNIT)
    assert found["DevicePolicy"] == ["closed"]
    assert found["DeviceAllow"] == ["char-195 rw", "char-nvidia* rw", "/dev/kmsg r"]
    assert found["ReadOnlyPaths"] == ["/dev/shm"]
    assert found["ReadWritePaths"] == ["-/dev/shm/rankwatch"]


def test_limits_and_restarts() -> None:
    """Memory and CPU are bounded; a mistake in the settings is not tried again, anything else is."""
    found = directives(UNIT)
    assert (found["MemoryMax"], found["CPUQuota"], found["TimeoutStopSec"]) == (["2G"], ["100%"], ["10"])
    assert int(found["LimitNOFILE"][0]) >= 2 * MAX_BOXES  # an agent takes at most half for black boxes
    assert found["Restart"] == ["on-failure"]
    assert found["RestartPreventExitStatus"] == ["2"]


def test_settings_file() -> None:
    """The unit names it, and the agent reads it."""
    assert directives(UNIT)["ExecStart"][0].endswith("rankwatch agent --config /etc/rankwatch/agent.toml")
    config = load_config(flags={}, environ={}, file=DEPLOY / "agent.toml").values
    assert config.listen == "0.0.0.0:9477"
