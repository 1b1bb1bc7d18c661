"""Experiment trackers: found by what the process has loaded, told at rank 0's exit, never waited for long."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.errors import TrackerError
from rankwatch.trackers.finding import Tracker, find, parse_note, without_credentials, write_note
from rankwatch.trackers.telling import MlflowServer, credentials, dashboard_url
from rankwatch.untrusted.folders import Folder
from support.processes.python import python
from support.trackers.mlflow import stand_in

RUN_ID = "0123456789abcdef0123456789abcdef"
START = (
    "import os, sys, time, types, rankwatch\n"
    "from pathlib import Path\n"
    "run = rankwatch.start(run='job')\n"
    "for _ in range(4):\n    with run.step(): time.sleep(0.01)\n"
)
NOTED = (
    "note = Path(os.environ['RANKWATCH_DIR'], 'job', '0.trackers')\n"
    "while not note.exists(): time.sleep(0.01)\n"
)
"""Wait until the trackers have been found."""


SHORT = "from rankwatch.trackers import watching\nwatching._watch._exit_seconds = 0.5\n"
"""For trackers that never answer."""


def ran(directory: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process that records a run and then runs `code`."""
    return python(START + code, directory=directory, **{"RANKWATCH_TRACKERS": "1", **variables})


def noted(directory: Path) -> tuple[Tracker, ...]:
    return parse_note((directory / "job" / "0.trackers").read_bytes())


class Answers:
    """Takes what is posted and answers 200."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, str]]] = []

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.posted.append((request.path, dict(request.headers)))
        request.send_response(200)
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"{}")


@pytest.mark.process
def test_mlflow_by_its_variables(tmp_path: Path) -> None:
    """MLFLOW_RUN_ID is enough, without MLflow in the process: one request at the exit, with credentials."""
    answers = Answers()
    with stand_in(answers) as endpoint:
        code = "assert 'http.client' not in sys.modules\n"
        variables = {"MLFLOW_TRACKING_URI": endpoint, "MLFLOW_TRACKING_TOKEN": "secret"}
        done = ran(tmp_path, code, MLFLOW_RUN_ID=RUN_ID, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    ((path, headers),) = answers.posted
    assert path == "/api/2.0/mlflow/runs/log-batch"
    assert headers["Authorization"] == "Bearer secret"
    page = f"{endpoint}/#/experiments/0/runs/{RUN_ID}"
    assert noted(tmp_path) == (Tracker(TrackerKind.MLFLOW, RUN_ID, page, endpoint),)


def dribble(request: BaseHTTPRequestHandler) -> None:
    """Send a byte now and then, for ever."""
    gone = threading.Event()
    try:
        while not gone.wait(0.1):
            request.wfile.write(b"H")
            request.wfile.flush()
    except OSError:
        return


def redirect(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "http://127.0.0.1:1/")
    request.end_headers()


@pytest.mark.process
@pytest.mark.parametrize("answer", [dribble, redirect])
def test_odd_servers(tmp_path: Path, answer: Any) -> None:
    """One that never ends its answer, and one that sends us elsewhere: the exit goes on, with one line."""
    with stand_in(answer) as endpoint:
        done = ran(tmp_path, SHORT, MLFLOW_RUN_ID=RUN_ID, MLFLOW_TRACKING_URI=endpoint)
    assert done.returncode == 0
    assert "rankwatch could not tell " in done.stderr


@pytest.mark.process
def test_dead_servers(tmp_path: Path) -> None:
    """Nobody listens; or somebody does and never takes the connection."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        refused = ran(tmp_path / "refused", "", MLFLOW_RUN_ID=RUN_ID, MLFLOW_TRACKING_URI=endpoint)
        listening.listen(0)
        silent = ran(tmp_path / "silent", SHORT, MLFLOW_RUN_ID=RUN_ID, MLFLOW_TRACKING_URI=endpoint)
    assert (refused.returncode, silent.returncode) == (0, 0)
    assert "rankwatch could not tell mlflow: TrackerError: MLflow at 127.0.0.1:" in refused.stderr
    assert "rankwatch could not tell " in silent.stderr


def test_deadline_of_a_request() -> None:
    """A server that dribbles its answer is cut off: the timeout is that of the whole request."""
    with stand_in(dribble) as endpoint, pytest.raises(TrackerError):
        server = MlflowServer(endpoint, headers={}, timeout_seconds=0.5)
        server.log_batch(RUN_ID, tags={}, metrics={}, step=0)


def test_wrong_run_id() -> None:
    """What is no id of MLflow is not sent."""
    server = MlflowServer("http://127.0.0.1:1", headers={}, timeout_seconds=0.5)
    with pytest.raises(TrackerError, match="is no id of a run of MLflow"):
        server.log_batch("../x", tags={}, metrics={}, step=0)


def test_mlflow_in_the_process() -> None:
    """The active run of MLflow's library, with its page, without the password of the server."""
    started = SimpleNamespace(info=SimpleNamespace(run_id="a" * 32, experiment_id="7"))
    uri = "http://user:secret@mlflow:5000/"
    mlflow = SimpleNamespace(get_tracking_uri=lambda: uri, active_run=lambda: started)
    (found,) = find({"mlflow": mlflow}, {})
    assert found.tracker.url == f"http://mlflow:5000/#/experiments/7/runs/{'a' * 32}"


def test_credentials() -> None:
    """As MLflow's own client: user and password come before the token."""
    assert credentials({}) == {}
    assert credentials({"MLFLOW_TRACKING_TOKEN": "t"}) == {"Authorization": "Bearer t"}
    both = {"MLFLOW_TRACKING_TOKEN": "t", "MLFLOW_TRACKING_USERNAME": "u", "MLFLOW_TRACKING_PASSWORD": "p"}
    assert credentials(both) == {"Authorization": "Basic dTpw"}


WANDB = (
    "class Settings(dict):\n    def update(self, values, **how): dict.update(self, values)\n"
    "wandb = types.ModuleType('wandb'); wandb.run = types.SimpleNamespace(\n"
    "    id='abc', url='https://user:secret@wandb.ai/me/p/runs/abc', config=Settings(), summary=Settings())\n"
    "sys.modules['wandb'] = wandb\n"
    "import atexit, json\n"
    "@atexit.register\ndef finish():\n"
    "    if not os.environ.get('FAIL'): print(json.dumps([wandb.run.config, wandb.run.summary]))\n"
    "    wandb.run = None\n"
)


@pytest.mark.process
def test_wandb(tmp_path: Path) -> None:
    """Its run gets tags as config and metrics as summary, before its own exit handler ends it."""
    done = ran(tmp_path, WANDB + NOTED, RANKWATCH_DASHBOARD_URL="https://grafana.example/")
    assert done.returncode == 0, done.stderr
    config, summary = json.loads(done.stdout)
    assert config["rankwatch.run"] == "job"
    assert config["rankwatch.dashboard_url"] == "https://grafana.example/d/rankwatch-run-debug?var-run=job"
    assert 0.0 < summary["rankwatch/goodput"] <= 1.0
    assert summary["rankwatch/step_seconds"] >= 0.01
    assert noted(tmp_path) == (Tracker(TrackerKind.WANDB, "abc", "https://wandb.ai/me/p/runs/abc"),)


@pytest.mark.process
@pytest.mark.parametrize("harm", ["raise RuntimeError('wandb is broken')", "time.sleep(1000)"])
def test_broken_library(tmp_path: Path, harm: str) -> None:
    """A tracker's library that raises or hangs costs a line and a few seconds at the exit."""
    code = f"class Bad(Settings):\n    def update(self, values, **how): {harm}\nwandb.run.config = Bad()\n"
    done = ran(tmp_path, SHORT + WANDB + code + NOTED, FAIL="1")
    assert done.returncode == 0
    assert done.stderr.count("rankwatch could not tell ") == 1


@pytest.mark.process
@pytest.mark.parametrize(
    "code",
    ["if not os.fork(): sys.exit()\nos.wait()\n", "run.finish()\nrun = rankwatch.start(run='second')\n"],
    ids=["forked child", "second run"],
)
def test_told_once(tmp_path: Path, code: str) -> None:
    """A child that leaves by the same handlers tells nobody anything, and only the run that was started last
    is told."""
    answers = Answers()
    with stand_in(answers) as endpoint:
        ran(tmp_path, code, MLFLOW_RUN_ID=RUN_ID, MLFLOW_TRACKING_URI=endpoint)
    assert len(answers.posted) == 1


@pytest.mark.process
def test_other_ranks_and_switch(tmp_path: Path) -> None:
    """Only rank 0 looks for trackers, and nobody does where it is turned off."""
    answers = Answers()
    with stand_in(answers) as endpoint:
        variables = {"MLFLOW_RUN_ID": RUN_ID, "MLFLOW_TRACKING_URI": endpoint}
        ran(tmp_path / "rank", "", RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", **variables)
        ran(tmp_path / "off", "", **variables | {"RANKWATCH_TRACKERS": "0"})
    assert answers.posted == []
    assert not list(tmp_path.glob("*/job/*.trackers"))


@pytest.mark.parametrize("module", [SimpleNamespace(), SimpleNamespace(run=SimpleNamespace(id=1)), 5, None])
def test_half_loaded_modules(module: Any) -> None:
    """Modules that are imported at this moment, or are not what their name says, are left out."""
    assert find({"wandb": module, "mlflow": module, "trackio": module}, {}) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"{", b"\xff", b"[" * 5000, b"null", b'{"trackers": 5}', b'{"trackers": [5, {}, []]}',
        json.dumps({"trackers": [{"kind": "other", "run": "x", "url": ""}]}).encode(),
        json.dumps({"trackers": [{"kind": "wandb", "run": 5, "url": ""}]}).encode(),
        json.dumps({"trackers": [{"kind": [], "run": "x", "url": ""}, {"kind": {}, "run": "x"}]}).encode(),
    ],
)  # fmt: skip
def test_notes_without_sense(raw: bytes) -> None:
    assert parse_note(raw) == ()


def test_keys_in_a_page(tmp_path: Path) -> None:
    """A key in the address of a page stays out of the note, and out of what is read of one that has it. The
    rest of its query and fragment names the page."""
    url = "https://x/p?project=a&write_token=S3CR3T77#/runs/1"
    shown = url.replace("S3CR3T77#", "***#")
    assert without_credentials(url) == shown
    old = json.dumps({"trackers": [Tracker(TrackerKind.TRACKIO, "a", url)._asdict()]})
    assert [each.url for each in parse_note(old.encode())] == [shown]


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)", "file:///etc/passwd", "http://", "https://user:pw@host/", "http://a b/",
        'http://x/"><script>', "http://x/\n", "http://ä/", "https://x/" + "y" * 600, "http://[::1/",
    ],
)  # fmt: skip
def test_urls_that_are_refused(tmp_path: Path, url: str) -> None:
    """Only short, plain addresses of the web go into the note, and come out of one."""
    tracker = Tracker(TrackerKind.WANDB, "abc", url)
    write_note(Folder.open(tmp_path), "0.trackers", [tracker])
    assert parse_note((tmp_path / "0.trackers").read_bytes()) == ()
    assert parse_note(json.dumps({"trackers": [tracker._asdict()]}).encode()) == ()


def test_dashboard_url() -> None:
    assert dashboard_url("http://g/", "a b&c").endswith("/d/rankwatch-run-debug?var-run=a%20b%26c")
