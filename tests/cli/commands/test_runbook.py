"""`rankwatch runbook`: the page of an alert in the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

from rankwatch_alerts import ALERT_NAMES, RuleConfig, alertmanager_config
from rankwatch_cli.main import main
from support.servers.loopback import serving
from support.servers.prometheus import alertmanager, poll, post_json, reserved_port

NODE = "gpu-17; touch $(pwned) 'x'"
ALERT: dict[str, Any] = {
    "labels": {"alertname": "RankwatchRunSlow", "cluster": "eu1", "run": "llama", "rank": "5", "node": NODE},
    "annotations": {"description": "Rank 5 is\x1b[2J slow.", "dashboard_url": "https://grafana.test/d/x"},
    "startsAt": "2026-11-23T09:30:00Z",
    "generatorURL": "http://prometheus.test:9090/prom/graph?g0.expr=x&g0.tab=1",
}


Runbook = Callable[..., str]


@pytest.fixture
def runbook(capsys: pytest.CaptureFixture[str]) -> Runbook:
    """What the command prints; where it fails, its only line of error and nothing else."""

    def printed(*arguments: str, status: int = 0) -> str:
        try:
            found: Any = main(["runbook", *arguments])
        except SystemExit as stopped:
            found = stopped.code
        text = capsys.readouterr()
        assert found == status
        if not status:
            return text.out
        assert (text.out, text.err.count("\n")) == ("", 1)
        return text.err

    return printed


def _exports(text: str) -> dict[str, str]:
    """The variables as a shell takes them from the printed lines."""
    lines = [line.strip() for line in text.splitlines() if re.match(r" +export ", line)]
    names = ("PROMETHEUS", "CLUSTER", "RUN", "RANK", "NODE", "FS_PATH")
    shown = "\n".join(f'printf "%s=%s\\0" {name} "${name}"' for name in names)
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["bash", "-c", "\n".join([*lines, shown])], env=path, capture_output=True, check=True
    )
    pairs = (each.partition("=") for each in done.stdout.decode().split("\0") if each)
    return {name: value for name, _, value in pairs}


def test_list(runbook: Runbook) -> None:
    """One line for each alert."""
    assert runbook().split() == sorted(ALERT_NAMES)


@pytest.mark.process
@pytest.mark.parametrize("name", ["RankwatchRunSlow", "runslow", "RANKWATCHRUNSLOW"])
def test_page(name: str, runbook: Runbook) -> None:
    """Plain text: no fences, links or pictures, commands indented, examples where no alert is given."""
    text = runbook(name)
    assert text.startswith("RankwatchRunSlow\n================\n")
    assert "\nWhat it means\n-------------\n" in text
    assert "What you see" in text
    assert not [each for each in ("```", "](", "![", ".png", "\n\n\n") if each in text]
    assert _exports(text)["RUN"] == "my-run"


@pytest.mark.process
@pytest.mark.parametrize(
    "wrap",
    [
        lambda alert: alert,
        lambda alert: [alert],
        lambda alert: {"version": "4", "alerts": [{**alert, "status": "firing"}]},
        lambda alert: {"status": "success", "data": {"alerts": [alert]}},
    ],
    ids=["alert", "list", "webhook", "prometheus"],
)
def test_alert(wrap: Any, runbook: Runbook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its labels stand in the commands, quoted: whoever can send an alert must not run a command here."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(wrap(ALERT))))
    text = runbook("--alert", "-")
    assert text.startswith(
        "FIRING since 2026-11-23T09:30:00Z: RankwatchRunSlow\n  cluster=eu1  run=llama  rank=5"
    )
    assert "Rank 5 is?[2J slow." in text
    assert _exports(text) == {
        "PROMETHEUS": "http://prometheus.test:9090/prom",
        "CLUSTER": "eu1",
        "RUN": "llama",
        "RANK": "5",
        "NODE": NODE,
        "FS_PATH": "",
    }


def test_output_of_a_command(runbook: Runbook) -> None:
    """It stands behind a bar, so that nobody takes it for a command."""
    lines = runbook("runfailed").splitlines()
    assert any(line.startswith("    | FAILED: ended by") for line in lines)
    assert any(re.match(r"     +ask ", line) for line in lines)
    assert not any(line.startswith("    |") and "ask " in line for line in lines)


@pytest.mark.process
def test_path_of_an_alert(runbook: Runbook) -> None:
    """The shell has a PATH of its own, so the label `path` has another name there."""
    labels = {"alertname": "RankwatchCheckpointAtRisk", "path": "/my checkpoints"}
    exports = _exports(runbook("--alert", json.dumps({"labels": labels})))
    assert exports["FS_PATH"] == "/my checkpoints"


@pytest.mark.process
def test_alert_without_a_cluster(runbook: Runbook) -> None:
    """Its series have no such label, so the example would hide them all."""
    labels = {"alertname": "RankwatchRunSlow", "run": "llama"}
    exports = _exports(runbook("--alert", json.dumps({"labels": labels})))
    assert (exports["CLUSTER"], exports["RUN"], exports["NODE"]) == ("", "llama", "my-node")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["RunSlw"], "there is no runbook 'RunSlw': did you mean RankwatchRunSlow"),
        (["link"], "did you mean RankwatchLinkDown or RankwatchLinkErrors?"),
        (["xyzzy"], "there is no runbook 'xyzzy': `rankwatch runbook` lists them"),
        (["--alert", "{"], "--alert is no JSON"),
        (["--alert", "[" * 100_000], "--alert is no JSON"),
        (["--alert", '{"data":' * 900 + "{}" + "}" * 900], "--alert "),
        (["--alert", "null"], "--alert holds no alert: expected an object with labels"),
        (["--alert", "[]"], "--alert holds no alert: expected an object with labels"),
        (["--alert", '{"labels": {"run": "r"}}'], "--alert holds no alert: expected an object with labels"),
        (["--alert", '{"labels": {"alertname": "DiskFull"}}'], "there is no runbook 'DiskFull'"),
        (["--alert", '{"labels": {"alertname": "\\u001b[2J"}}'], "there is no runbook '?[2J'"),
        (["x" * 100_000], f"there is no runbook '{'x' * 80}'"),
        (["runlate", "--alert", json.dumps(ALERT)], "--alert holds no alert 'runlate', but RankwatchRunSlow"),
        (
            ["runlate", "--alert", json.dumps([{"labels": {"alertname": f"A{n}"}} for n in range(9)])],
            "but A0, A1, A2, A3, A4 and 4 more",
        ),
        (["--alertmanager", "http://127.0.0.1:1"], "--alertmanager needs the name of an alert"),
        (["runslow", "--alertmanager", "alertmanager:9093"], "--alertmanager is no URL such as"),
        (["runslow", "--alertmanager", "http://[::1"], "--alertmanager is no URL such as"),
        (["runslow", "--alertmanager", "http://me:secret@host"], "--alertmanager is no URL such as"),
        (["runslow", "--alertmanager", "http://\x1b[2J"], "--alertmanager is no URL such as"),
        (["runslow", "--alert", "{}", "--alertmanager", "http://x"], "not allowed with"),
    ],
)
def test_wrong_input(arguments: list[str], sentence: str, runbook: Runbook) -> None:
    """One sentence and exit status 2."""
    assert sentence in runbook(*arguments, status=2)


def test_unreachable(runbook: Runbook) -> None:
    """A port where nobody listens."""
    with reserved_port() as port:
        said = runbook("runslow", "--alertmanager", f"http://127.0.0.1:{port}", status=2)
    assert said.startswith(f"rankwatch runbook: could not reach http://127.0.0.1:{port}: ")


OK = b"HTTP/1.1 200 OK\r\n\r\n"
ESCAPES = {
    "labels": {"alertname": "RankwatchRunSlow", "run": "\x1b[2J", "\x07": {"x": [1]}, "rank": 5},
    "annotations": {"description": "\x1b]0;title\x07"},
    "startsAt": "\x1b[2J",
    "generatorURL": "http://[::1",
}


@contextmanager
def _server(*parts: bytes, pause: float = 0.0) -> Iterator[str]:
    """Answers each request with these parts, with pauses between them."""

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            with suppress(OSError):  # the client has gone
                for part in parts:
                    self.request.sendall(part)
                    time.sleep(pause)

    with serving(ThreadingTCPServer(("127.0.0.1", 0), Handler)) as address:
        yield f"http://{address}"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (OK + b"<html>Log in</html>", "it is no Alertmanager"),
        (OK + b"", "it is no Alertmanager"),
        (OK + b"null", "it is no Alertmanager"),
        (OK + b'{"data": []}', "it is no Alertmanager"),
        (OK + b'[{"labels": [1]}]', "it is no Alertmanager"),
        (OK + b"\xff\xfe[]", "it is no Alertmanager"),
        (OK + b"[" * 100_000, "it is no Alertmanager"),
        (OK + b'[{"labels": {}},' * 2_000_000, "it is no Alertmanager"),
        (b"HTTP/1.1 500 \x1b[2J\r\n\r\n", "it answers with status 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "with status 302"),
        (b"\x1b[2J\r\n\r\n", ": ?[2J"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "IncompleteRead"),
        (b"", "closed connection without response"),
    ],
    ids=[
        *("html", "empty", "null", "object", "labels", "encoding", "deep"),
        *("huge", "status", "redirects", "garbage", "chunk", "closed"),
    ],
)
def test_hostile_server(answer: bytes, sentence: str, runbook: Runbook) -> None:
    """Whatever it answers: one sentence without an escape, and exit status 2."""
    with _server(answer) as url:
        said = runbook("runslow", "--alertmanager", url, status=2)
    assert sentence in said
    assert said.rstrip("\n").isprintable()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect(status: int, runbook: Runbook) -> None:
    """A server cannot send the command to another address of the user's network; it says that it stays."""
    with _server(OK + json.dumps([ALERT]).encode()) as elsewhere:
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {elsewhere}/\r\nContent-Length: 0\r\n\r\n"
        with _server(moved.encode()) as url:
            said = runbook("runslow", "--alertmanager", url, status=2)
    assert f"status {status}, a redirect, which is not followed" in said


@pytest.mark.parametrize("start", [OK, b"HTTP/1.1 200 OK\r\nX-Slow: "], ids=["body", "head"])
def test_slow_server(start: bytes, runbook: Runbook) -> None:
    """A server that sends a byte now and then costs no more than the timeout."""
    with _server(start, *[b"1"] * 100, pause=0.02) as url:
        said = runbook("runslow", "--alertmanager", url, "--timeout-seconds", "0.2", status=2)
    assert "no answer within 0.2 s" in said


def test_hostile_alerts(runbook: Runbook) -> None:
    """No escape reaches the terminal, a few alerts stand for many, and those of other names are left out."""
    other = {"labels": {"alertname": "RankwatchRunLate"}}
    with _server(OK + json.dumps([ESCAPES] * 30 + [other]).encode()) as url:
        text = runbook("runslow", "--alertmanager", url)
    assert text.startswith("FIRING since ?[2J: RankwatchRunSlow\n  run=?[2J  ?={'x': [1]}  rank=5\n")
    assert "30 alerts fire. The first 20 are shown. The commands are for the first one." in text
    assert text.count("FIRING") == 20
    assert "RankwatchRunLate" not in text
    assert text.replace("\n", "").isprintable()


def test_no_standard_input(runbook: Runbook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed, or no text."""
    for given in (None, io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8")):
        monkeypatch.setattr(sys, "stdin", given)
        said = runbook("--alert", "-", status=2)
        assert said.endswith("could not read an alert from standard input\n")


@pytest.mark.process
def test_alertmanager(tmp_path: Path, runbook: Runbook) -> None:
    """The firing alerts of that name are described, and the commands are for the oldest."""
    other = {**ALERT, "labels": {**ALERT["labels"], "rank": "6"}, "startsAt": "2026-11-23T10:00:00Z"}
    stall = {**ALERT, "labels": {**ALERT["labels"], "alertname": "RankwatchRunStalled"}}
    with alertmanager(alertmanager_config(RuleConfig.for_demo()), tmp_path) as url:
        post_json(f"{url}/api/v2/alerts", [other, ALERT, stall])

        def printed() -> str | None:
            text = runbook("runslow", "--alertmanager", f"{url}/")
            return text if "2 alerts fire" in text else None

        text = poll(printed, 60, "both alerts")
        none = "No alert RankwatchRunLate fires at this Alertmanager.\n\n"
        assert runbook("runlate", "--alertmanager", url).startswith(none)
        assert "could not ask" in runbook("runlate", "--alertmanager", f"{url}/metrics", status=2)
    assert text.index("rank=5") < text.index("rank=6") < text.index("2 alerts fire. The commands")
    assert "RankwatchRunStalled\n  cluster" not in text
    assert _exports(text)["RANK"] == "5"


@pytest.mark.process
def test_without_a_terminal() -> None:
    """Also below a pipe that closes early, as of `head`."""
    command = f"{shlex.quote(sys.executable)} -m rankwatch_cli runbook runslow | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("RankwatchRunSlow\n", "")
