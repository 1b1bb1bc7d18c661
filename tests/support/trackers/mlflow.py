"""A real MLflow server on loopback, and servers that are slow or odd in its place."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from support.agent.process import until
from support.paths import ROOT
from support.servers.loopback import Handler, serving_http

VARIABLE = "RANKWATCH_TEST_MLFLOW"
"""The program mlflow; by default that of .tools/mlflow."""


def find_mlflow() -> str:
    """The program; skips the test where there is none."""
    program = os.environ.get(VARIABLE) or str(ROOT / ".tools" / "mlflow" / "bin" / "mlflow")
    if not Path(program).exists():
        pytest.skip(f"no MLflow server: {program} does not exist; {VARIABLE} names another, see make help")
    return program


class Mlflow:
    """A client of the real server, by its REST interface alone."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def begin_run(self) -> str:
        """A new run of the default experiment; its id."""
        answer = self._call("runs/create", {"experiment_id": "0"})
        return str(answer["run"]["info"]["run_id"])

    def tags(self, run: str) -> dict[str, str]:
        return {each["key"]: each["value"] for each in self._data(run).get("tags", ())}

    def metrics(self, run: str) -> dict[str, tuple[float, int]]:
        """Name -> newest value and its step."""
        found = self._data(run).get("metrics", ())
        return {each["key"]: (each["value"], int(each["step"])) for each in found}

    def _data(self, run: str) -> Any:
        return self._call(f"runs/get?run_id={run}", None)["run"]["data"]

    def _call(self, what: str, content: dict[str, Any] | None) -> Any:
        request = urllib.request.Request(
            f"{self.endpoint}/api/2.0/mlflow/{what}",
            None if content is None else json.dumps(content).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)


@contextmanager
def mlflow_server(directory: Path) -> Iterator[Mlflow]:
    """A real server with an empty database."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
    store += ["--artifacts-destination", str(directory)]
    command = [find_mlflow(), "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *store]
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, start_new_session=True)
    client = Mlflow(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        assert process.poll() is None, (directory / "server.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{client.endpoint}/health", timeout=5):
                return True
        except OSError:
            return False

    try:
        until(answers, "MLflow answers", seconds=120)
        yield client
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@contextmanager
def stand_in(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server that answers each POST as told; its address."""

    class StandIn(Handler):
        def answer(self) -> None:
            self.body = self.received()
            answer(self)

    with serving_http(StandIn) as address:
        yield f"http://{address}"
