"""The parts of the demo and how each is started: trainer, agent, Prometheus, Alertmanager."""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.error import URLError

from rankwatch.conventions import environment
from rankwatch_agent.demo.workspace import DemoError, Workspace, free_port
from rankwatch_alerts import RuleConfig, alertmanager_config, prometheus_config, write_rules

RUN = "demo"
START_SECONDS = 60.0
"""Longest time a part may take to answer."""
_LAYERS = 4
_EMULATED = (
    *("--device", "emulated", "--layers", str(_LAYERS)),
    *("--layer-forward-seconds", "0.02", "--layer-backward-seconds", "0.03"),
)
"""Steps of about 0.2 s, nearly all of it asleep: four ranks run true to life on two cores."""
_COMPUTING = ("--device", "cpu", "--layers", str(_LAYERS), "--width", "64", "--batch-size", "4")


def find_servers() -> dict[str, str]:
    """Prometheus and Alertmanager on this machine, by name; those that are missing are left out."""
    names = {"prometheus": ("prometheus",), "alertmanager": ("prometheus-alertmanager", "alertmanager")}
    found = {name: next(filter(None, map(shutil.which, commands)), None) for name, commands in names.items()}
    return {name: path for name, path in found.items() if path}


def start_trainer(workspace: Workspace, *, ranks: int, computing: bool, faults: Path) -> None:
    """The reference trainer under torchrun, with as many steps as the demo may need."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
        *("-m", "rankwatch_trainer", "--steps", "100000", *(_COMPUTING if computing else _EMULATED)),
        *("--checkpoint-dir", str(workspace.directory / "checkpoints"), "--checkpoint-every", "100"),
        *("--fault-file", str(faults)),
    ]
    variables = {
        environment.RUN: RUN,
        environment.DIRECTORY: str(black_boxes(workspace)),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    workspace.start("trainer", command, variables)


def black_boxes(workspace: Workspace) -> Path:
    """The directory of the black boxes."""
    return workspace.directory / "blackboxes"


def start_agent(workspace: Workspace) -> str:
    """The agent; returns its address, HOST:PORT."""
    address_file = workspace.directory / "agent.address"
    command = [
        *(sys.executable, "-m", "rankwatch_agent", "agent", "--listen", "127.0.0.1:0"),
        *("--address-file", str(address_file), "--directory", str(black_boxes(workspace))),
        *("--checkpoint-paths", str(workspace.directory)),
    ]
    workspace.start("agent", command)
    wait_until(workspace, address_file.exists, "the agent to listen")
    return address_file.read_text().strip()


def start_alertmanager(workspace: Workspace, binary: str, config: RuleConfig, webhook_url: str) -> str:
    """Alertmanager, delivering to the webhook; returns its address."""
    file = workspace.directory / "alertmanager.yml"
    file.write_text(json.dumps(alertmanager_config(config, webhook_url)))  # JSON is YAML
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(binary, f"--config.file={file}", f"--web.listen-address={address}", "--cluster.listen-address="),
        f"--storage.path={workspace.directory / 'alertmanager'}",
    ]
    workspace.start("alertmanager", command)
    wait_until(workspace, lambda: answers(f"http://{address}/-/ready"), "Alertmanager to be ready")
    return address


def start_prometheus(
    workspace: Workspace, binary: str, config: RuleConfig, *, agent: str, alertmanager: str
) -> str:
    """Prometheus, with the shipped rules at the demo's time scale; returns its address."""
    rules = workspace.directory / "rules"
    rules.mkdir()
    content = prometheus_config(
        config,
        rule_files=write_rules(config, rules),
        agent_targets=[agent],
        alertmanager_targets=[alertmanager],
    )
    file = workspace.directory / "prometheus.yml"
    file.write_text(json.dumps(content))
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(binary, f"--config.file={file}", f"--web.listen-address={address}"),
        f"--storage.tsdb.path={workspace.directory / 'prometheus'}",
    ]
    workspace.start("prometheus", command)
    wait_until(workspace, lambda: answers(f"http://{address}/-/ready"), "Prometheus to be ready")
    return address


def wait_until(workspace: Workspace, true: Callable[[], bool], what: str) -> None:
    """Poll until it is true; raises DemoError when it takes too long or a part ends."""
    deadline = time.monotonic() + START_SECONDS
    while not true():
        workspace.check()
        if time.monotonic() > deadline:
            raise DemoError(f"waited {START_SECONDS:.0f} s for {what}")
        time.sleep(0.1)


def answers(url: str) -> bool:
    """Whether the URL answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


def missing_servers(found: Sequence[str]) -> str | None:
    """One sentence about what is missing and how to get it, or None."""
    if {"prometheus", "alertmanager"} <= set(found):
        return None
    return (
        "Prometheus or Alertmanager is not installed (Debian: apt-get install prometheus "
        "prometheus-alertmanager); the straggler is named from the agent's own figures instead"
    )
