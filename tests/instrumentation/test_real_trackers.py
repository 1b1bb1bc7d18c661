"""The real libraries of the trackers, offline, and a real MLflow server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.errors import TrackerError
from rankwatch.trackers.finding import find, parse_note
from rankwatch.trackers.telling import Facts, tell
from rankwatch_agent.incidents.episodes import IncidentRegistry
from rankwatch_agent.incidents.trackers import build_trackers
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.tracked_runs import TrackedRuns
from support.agent.process import until
from support.trackers.mlflow import Mlflow, mlflow_server
from support.training.ranks import rank

pytestmark = [pytest.mark.frameworks, pytest.mark.process]

START = (
    "import os, sys, time, rankwatch\n"
    "from pathlib import Path\n"
    "run = rankwatch.start(run='job')\n"
    "note = Path(os.environ['RANKWATCH_DIR'], 'job', '0.trackers')\n"
)
STEPS = "for _ in range(4):\n    with run.step(): time.sleep(0.01)\n"
NOTED = "while not note.exists(): time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as started:
        yield started


def ran(directory: Path, code: str, **variables: str) -> None:
    """A process that records a run and then runs `code`."""
    env = {**os.environ, "RANKWATCH_DIR": str(directory), "RANKWATCH_TRACKERS": "1", **variables}
    env |= {"HOME": str(directory), "TRACKIO_DIR": str(directory / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", START + code],
        env=env,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rankwatch could not" not in done.stderr


def needs(library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")


def test_mlflow_server(server: Mlflow) -> None:
    """Tags and metrics are in the run of a real server, at their step."""
    run = server.begin_run()
    env = {"MLFLOW_RUN_ID": run, "MLFLOW_TRACKING_URI": server.endpoint}
    (found,) = find({}, env)
    facts = Facts({"rankwatch.run": "job", "rankwatch.goodput": "0.9"}, {"rankwatch/goodput": 0.9}, 3)
    tell(found, facts, env, timeout_seconds=60.0)
    with pytest.raises(TrackerError, match="status 404"):
        gone = found._replace(tracker=found.tracker._replace(run="0" * 32))
        tell(gone, facts, env, timeout_seconds=60.0)
    assert server.tags(run).items() >= facts.tags.items()
    assert server.metrics(run) == {"rankwatch/goodput": (0.9, 3)}


def test_agent_and_mlflow(tmp_path: Path, server: Mlflow) -> None:
    """The agent's tags and metrics are in the run too, after the steps of a real rank."""
    run = server.begin_run()
    variables = {"MLFLOW_RUN_ID": run, "MLFLOW_TRACKING_URI": server.endpoint, "RANKWATCH_TRACKERS": "1"}
    before = f"os.environ.update({variables!r})"
    runs = TrackedRuns()
    ranks = RanksCollector(directory=tmp_path / "boxes", tracked=runs)
    config = AgentConfig(mlflow_endpoint=server.endpoint)
    trackers = build_trackers(config, runs=runs, registry=IncidentRegistry())

    def told() -> bool:
        ranks.collect()
        trackers.collect()
        return bool(server.metrics(run))

    with rank(tmp_path / "boxes", "steps(5, 0.01)\nready()", before=before):
        until(told, "MLflow has the agent's metrics")
    assert server.tags(run)["rankwatch.run"] == "job"
    assert "rankwatch/data_wait_share" in server.metrics(run)


def test_wandb_offline(tmp_path: Path) -> None:
    """Weights & Biases keeps config and summary in its own file, which it closes after us."""
    needs("wandb")
    code = "import wandb\nwandb.init(project='p', id='abc', mode='offline', settings={'silent': True})\n"
    ran(tmp_path, code + STEPS + NOTED)
    (tracker,) = parse_note((tmp_path / "job" / "0.trackers").read_bytes())
    assert (tracker.kind, tracker.run, tracker.url) == (TrackerKind.WANDB, "abc", "")
    (binary,) = tmp_path.glob("wandb/offline-run-*/run-abc.wandb")
    content = binary.read_bytes()
    for name in (b"rankwatch.run", b"rankwatch/goodput", b"rankwatch/step_seconds"):
        assert name in content


def test_trackio(tmp_path: Path) -> None:
    """trackio's database has tags and metrics as a row of the run."""
    needs("trackio")
    code = "import trackio\ntrackio.init(project='p', name='mine', embed=False)\n"
    ran(tmp_path, code + STEPS + NOTED)
    (tracker,) = parse_note((tmp_path / "job" / "0.trackers").read_bytes())
    assert (tracker.kind, tracker.run) == (TrackerKind.TRACKIO, "p/mine")
    files = [path.read_bytes() for path in (tmp_path / "trackio").rglob("*") if path.is_file()]
    assert any(b"rankwatch/goodput" in each for each in files)


@pytest.mark.parametrize("module", ["tensorboardX", "torch.utils.tensorboard"])
def test_tensorboard(tmp_path: Path, module: str) -> None:
    """Writers that are open at the exit get text and scalars, and are flushed."""
    needs("tensorboardX" if module == "tensorboardX" else "tensorboard")
    ran(tmp_path, f"from {module} import SummaryWriter\nwriter = SummaryWriter('logs')\n{STEPS}")
    content = b"".join(path.read_bytes() for path in (tmp_path / "logs").iterdir())
    assert b"rankwatch/goodput" in content and b"rankwatch.run" in content
