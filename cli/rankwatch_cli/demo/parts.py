"""The parts of the demo and how each is started: trainer, agent, Prometheus, Alertmanager."""

from __future__ import annotations

import json
import queue
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http.client import OK, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rankwatch.conventions import environment
from rankwatch.processes import python
from rankwatch.untrusted.http_client import ask
from rankwatch_alerts import RuleConfig, alertmanager_config, prometheus_config, write_rules
from rankwatch_cli.demo.workspace import DemoError, Workspace, reserved_address

RUN = "demo"
START_SECONDS = 60.0
"""Longest time a part may take to answer."""
_LAYERS = 4
_EMULATED = (
    *("--device", "emulated", "--layers", str(_LAYERS)),
    *("--layer-forward-seconds", "0.02", "--layer-backward-seconds", "0.03"),
)
"""Steps of about 0.2 s, nearly all of it asleep, so that four ranks run undisturbed on two cores."""
_MOST_OF_METRICS = 64 << 20
"""Bytes of the agent's page."""
_COMPUTING = ("--device", "cpu", "--layers", str(_LAYERS), "--width", "64", "--batch-size", "4")


def find_servers() -> dict[str, str]:
    """Return the paths of Prometheus and Alertmanager by name, of those that are installed."""
    names = {"prometheus": ("prometheus",), "alertmanager": ("prometheus-alertmanager", "alertmanager")}
    found = {name: next(filter(None, map(shutil.which, commands)), None) for name, commands in names.items()}
    return {name: path for name, path in found.items() if path}


def start_trainer(workspace: Workspace, *, ranks: int, computing: bool, faults: Path) -> None:
    """Start the reference trainer under torchrun, with more steps than the demo needs."""
    command = [
        *python("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
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
    """Return the directory of the black boxes."""
    return workspace.directory / "blackboxes"


def start_agent(workspace: Workspace, config: RuleConfig) -> str:
    """Start the agent; returns its address, HOST:PORT."""
    address_file = workspace.directory / "agent.address"
    command = [
        *python("-m", "rankwatch_cli", "agent", "--listen", "127.0.0.1:0"),
        *("--address-file", str(address_file), "--directory", str(black_boxes(workspace))),
        *("--checkpoint-paths", str(workspace.directory)),
        # An earlier demo has the same name of the run: it must not count as an earlier attempt.
        *("--state-directory", str(workspace.directory / "state")),
        *("--step-window-seconds", f"{config.step_window_seconds:g}"),
    ]
    workspace.start("agent", command)
    wait_until(workspace, address_file.exists, "the agent to listen")
    return address_file.read_text().strip()


def start_alertmanager(workspace: Workspace, binary: str, config: RuleConfig, webhook_url: str) -> str:
    """Start Alertmanager, which delivers to the webhook; returns its address."""
    file = workspace.directory / "alertmanager.yml"
    posted = replace(config, webhook_urls={"page": webhook_url, "ticket": webhook_url})
    file.write_text(json.dumps(alertmanager_config(posted)))  # JSON is YAML
    command = [
        *(binary, f"--config.file={file}", "--cluster.listen-address="),
        f"--storage.path={workspace.directory / 'alertmanager'}",
    ]
    return _start_server(workspace, "alertmanager", command)


def start_prometheus(
    workspace: Workspace, binary: str, config: RuleConfig, *, agent: str, alertmanager: str
) -> str:
    """Start Prometheus with the shipped rules at the demo's time scale; returns its address."""
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
    command = [binary, f"--config.file={file}", f"--storage.tsdb.path={workspace.directory / 'prometheus'}"]
    return _start_server(workspace, "prometheus", command)


def _start_server(workspace: Workspace, name: str, command: Sequence[str]) -> str:
    with reserved_address() as address:
        workspace.start(name, [*command, f"--web.listen-address={address}"])
        wait_until(
            workspace, lambda: answers(f"http://{address}/-/ready"), f"{name.capitalize()} to be ready"
        )
    return address


def wait_until(
    workspace: Workspace, true: Callable[[], bool], what: str, *, seconds: float = START_SECONDS
) -> None:
    """Poll until the condition holds; raises DemoError if that takes too long or a part ends."""
    deadline = time.monotonic() + seconds
    while not true():
        workspace.check()
        if time.monotonic() > deadline:
            raise DemoError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


def read_steps(agent: str) -> dict[int, float]:
    """Return steps of each rank by the agent's metrics, from one scrape; raises DemoError."""
    url = f"http://{agent}/metrics"
    try:
        reply = ask(url, seconds=5.0, most_bytes=_MOST_OF_METRICS)
    except (OSError, HTTPException, ValueError) as error:
        raise DemoError(f"could not read {url}: {error}") from error
    if reply.status != OK:
        raise DemoError(f"could not read {url}: HTTP Error {reply.status}: {reply.reason}")
    return {
        int(sample.labels["rank"]): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if sample.name == "rankwatch_steps_total"
    }


def answers(url: str) -> bool:
    """Return True if the URL answers with status 200."""
    try:
        return ask(url, seconds=2.0, most_bytes=_MAX_BYTES).status == OK
    except (OSError, HTTPException, ValueError):
        return False


def missing_servers(found: Sequence[str]) -> str | None:
    """Return one sentence about what is missing and how to get it, or None."""
    if {"prometheus", "alertmanager"} <= set(found):
        return None
    return (
        "Prometheus or Alertmanager is not installed (Debian: apt-get install prometheus "
        "prometheus-alertmanager); `rankwatch diagnose run` names the straggler instead"
    )


_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert as Alertmanager delivered it."""

    name: str
    firing: bool
    labels: dict[str, str]
    annotations: dict[str, str]
    received_at: float
    """Monotonic time of its arrival."""


class Receiver:
    """A webhook on a free loopback port, as long as the `with` block runs."""

    def __init__(self) -> None:
        self.alerts: queue.Queue[Alert] = queue.Queue()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where Alertmanager is to send."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/"

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        alerts = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = min(int(self.headers.get("Content-Length", 0)), _MAX_BYTES)
                for each in json.loads(self.rfile.read(size)).get("alerts", ()):
                    alerts.put(_alert(each))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing on the demo's terminal."""

        return Handler


def _alert(sent: dict[str, Any]) -> Alert:
    labels = {str(name): str(value) for name, value in sent["labels"].items()}
    return Alert(
        name=labels.get("alertname", ""),
        firing=sent.get("status") == "firing",
        labels=labels,
        annotations={str(name): str(value) for name, value in sent.get("annotations", {}).items()},
        received_at=time.monotonic(),
    )
