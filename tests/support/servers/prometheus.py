"""Real Prometheus and Alertmanager servers on loopback ports, and requests to them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rankwatch_alerts import to_yaml
from rankwatch_alerts.alertmanager import TEMPLATES

Answer = TypeVar("Answer")

_SECONDS_TO_START = 60.0
_SECONDS_TO_ANSWER = 30.0
_SECONDS_TO_END = 10.0


def require(*programs: str) -> None:
    """Skip the test if a program is missing, and say how to install it."""
    missing = [each for each in programs if shutil.which(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: apt install prometheus prometheus-alertmanager")


def accepted(*command: str | Path) -> str:
    """Return what a program such as promtool prints. Skip the test without it; fail it for what it finds."""
    require(str(command[0]))
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def poll(question: Callable[[], Answer | None], seconds: float, what: str | Callable[[], str]) -> Answer:
    """Ask until an answer is truthy, and return it, ever less often. Fail the test after `seconds`.

    what: is missing then; a function is called for it then.
    """
    deadline, pause = time.monotonic() + seconds, 0.05
    while time.monotonic() < deadline:
        answer = question()
        if answer:
            return answer
        time.sleep(pause)
        pause = min(1.1 * pause, 0.5)
    pytest.fail(f"no {what if isinstance(what, str) else what()} within {seconds:g} s")


def get_json(url: str, parameters: Mapping[str, str] | None = None) -> Any:
    """The JSON document at a URL."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(url + query, timeout=_SECONDS_TO_ANSWER) as answer:
        return json.load(answer)


def post_json(url: str, document: object) -> None:
    """Post a JSON document."""
    request = urllib.request.Request(
        url, data=json.dumps(document).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_SECONDS_TO_ANSWER):
        pass


def query(prometheus_url: str, expression: str) -> list[dict[str, Any]]:
    """The series of an instant query."""
    answer = get_json(f"{prometheus_url}/api/v1/query", {"query": expression})
    series: list[dict[str, Any]] = answer["data"]["result"]
    return series


@contextmanager
def reserved_port() -> Iterator[int]:
    """A loopback port that the kernel gives to nobody else until the block ends.

    A server that sets SO_REUSEADDR can still listen on it: Prometheus, Alertmanager and the store of
    torch do. A port that was only looked up may be taken when they start, seconds later.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        yield port


@contextmanager
def prometheus(config: Mapping[str, object], directory: Path, flags: Sequence[str] = ()) -> Iterator[str]:
    """A Prometheus with this configuration; yields its URL once it is ready.

    In the same directory as one before, it goes on with the data of that.
    """
    path = directory / "prometheus.yml"
    path.write_text(to_yaml(config))
    with reserved_port() as port, prometheus_at(port, path, flags) as url:
        yield url


def backfill(history: Iterable[str], directory: Path) -> None:
    """Give the Prometheus that starts in this directory a past: lines of OpenMetrics with their moments."""
    require("promtool")
    path = directory / "history.txt"
    path.write_text("\n".join(history) + "\n# EOF\n")
    create = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(path)]
    subprocess.run([*create, str(directory / "prometheus-data")], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def alertmanager(config: Mapping[str, object], directory: Path) -> Iterator[str]:
    """An Alertmanager with this configuration and no cluster; yields its URL once it is ready."""
    require("prometheus-alertmanager")
    path = directory / "alertmanager.yml"
    path.write_text(to_yaml(config))
    shutil.copy(TEMPLATES, directory)
    command = [
        "prometheus-alertmanager",
        f"--config.file={path}",
        f"--storage.path={directory / 'alertmanager-data'}",
        "--cluster.listen-address=",
        "--log.level=warn",
    ]
    with reserved_port() as port:
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        with server(command, port, directory / "alertmanager.log") as url:
            yield url


@contextmanager
def prometheus_at(port: int, file: Path, flags: Sequence[str] = ()) -> Iterator[str]:
    """A Prometheus with this file of configuration on a reserved port; yields its URL once it is ready."""
    require("prometheus")
    data = file.with_name(f"{file.stem}-data")
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={data}", "--log.level=warn"]
    command += [f"--web.listen-address=127.0.0.1:{port}", *flags]
    with server(command, port, file.with_suffix(".log")) as url:
        yield url


@contextmanager
def server(command: Sequence[str], port: int, log: Path, ready: str = "/-/ready") -> Iterator[str]:
    """A server that listens on this loopback port; yields its URL once it says that it is ready."""
    url = f"http://127.0.0.1:{port}"
    with _running(command, log) as process:
        poll(lambda: _ready(url + ready, process, log), _SECONDS_TO_START, f"answer from {command[0]}")
        yield url


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(url: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        pytest.fail(f"server ended with status {process.returncode}: {log.read_text()[-2000:]}")
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False
