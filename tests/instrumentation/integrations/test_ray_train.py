"""Ray Train: the environment of its workers, and a real training on two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rankwatch
from rankwatch.automatic.launching import SITE
from rankwatch.blackbox.layout import RecordKind
from support.training.blackbox import of_kind

pytest.importorskip("ray")
from rankwatch.integrations import ray_train

pytestmark = pytest.mark.frameworks
SCRIPT = Path(__file__).parents[2] / "support" / "frameworks" / "ray_training.py"


def configured(env_vars: dict[str, str] | None, name: str = "trained") -> dict[str, Any]:
    """The runtime environment of a `RunConfig` whose user has set these variables."""
    config = SimpleNamespace(name=name, worker_runtime_env={} if env_vars is None else {"env_vars": env_vars})
    ray_train._configured(config, None, None)
    return config.worker_runtime_env["env_vars"]


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers get the folder of sitecustomize in front of PYTHONPATH and the driver's variables."""
    monkeypatch.setenv("PYTHONPATH", "/own")
    monkeypatch.setenv("RANKWATCH_DIR", "/boxes")
    monkeypatch.setenv("RANKWATCH_RANK_PROCESS", "17:,,")
    for name in ("RANKWATCH_SUMMARY", "RANKWATCH_LOG_LINES", "RANKWATCH_TRACKERS"):  # of tests/conftest.py
        monkeypatch.delenv(name, raising=False)
    assert ray_train.environment(run="pretrain") == {
        "PYTHONPATH": f"{SITE}{os.pathsep}/own",
        "RANKWATCH_DIR": "/boxes",
        "RANKWATCH_PYTHON": sys.executable,
        "RANKWATCH_RUN": "pretrain",
        "RANKWATCH_SINGLE_PROCESS": "1",
    }


def test_variables_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has set for the workers wins, but for the folder in front of PYTHONPATH."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    found = configured({"RANKWATCH_RUN": "mine", "PYTHONPATH": "/theirs", "OWN": "stays"})
    assert found["RANKWATCH_RUN"] == "mine" and found["OWN"] == "stays"
    assert found["PYTHONPATH"] == f"{SITE}{os.pathsep}/theirs"


def test_run_is_named_after_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings of a driver are two runs, unless `RANKWATCH_RUN` names them."""
    assert configured(None)["RANKWATCH_RUN"] == "trained"
    monkeypatch.setenv("RANKWATCH_RUN", "both")
    assert configured(None)["RANKWATCH_RUN"] == "both"


def test_outside_of_a_worker() -> None:
    """Nobody tells a rank there: one sentence."""
    with pytest.raises(rankwatch.UsageError, match="this process is no worker of Ray Train: "):
        ray_train.start()


@pytest.mark.process
def test_training(tmp_path: Path) -> None:
    """Below `rankwatch run` every worker is woken, and is a rank of a run named after the `RunConfig`,
    whether its loop calls rankwatch or not."""
    boxes = tmp_path / "boxes"
    env = {
        **os.environ,
        "RANKWATCH_DIR": str(boxes),
        "RAY_TRAIN_V2_ENABLED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
    }
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # paths of Ray's sockets have to be short
        command = [sys.executable, "-m", "rankwatch_cli", "run", "--", sys.executable, str(SCRIPT), folder]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        seen = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]
    expected = {"variables": {"OWN": "stays", "RANKWATCH_RUN": "trained"}, "woken": True}
    assert seen == [expected, expected]
    found = sorted(boxes.glob("*/*.blackbox"))
    assert [str(each.relative_to(boxes).with_suffix("")) for each in found] == [
        f"{name}/{rank}" for name in ("plain", "trained") for rank in range(2)
    ]
    for each in found:
        assert [step.payload[0] for step in of_kind(each, RecordKind.STEP)] == [0, 1, 2]
