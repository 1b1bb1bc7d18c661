"""A bit flips in a checkpoint of the reference trainer, and the agent's series and the alert name file and
tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.agent.process import AgentProcess, agent_process, until
from support.checkpoints import flip
from support.e2e.monitored_system import complete, monitored_system
from support.jobs.trainer import TINY, started_ranks

pytestmark = pytest.mark.process

STEPS = (10, 20, 30)


def trained(directory: Path) -> Path:
    """The folder of the checkpoints of a run of two ranks that has ended."""
    folder = directory / "checkpoints"
    saved = ("--checkpoint-dir", str(folder), "--checkpoint-every", "10", "--keep-checkpoints", "3")
    environment = {
        "RANKWATCH_DISABLE": "",
        "RANKWATCH_DIR": str(directory / "blackboxes"),
        "RANKWATCH_RUN": "job",
    }
    with started_ranks(directory, (*TINY, "--steps", "30", *saved), environment) as ranks:
        for each in ranks:
            assert each.wait() == 0, each.printed
    assert len(list(folder.iterdir())) == len(STEPS)
    return folder


def age(note: Path, seconds: float) -> None:
    """Let the saves in a note have ended earlier: the agent gives other ranks ten seconds."""
    document = json.loads(note.read_text())
    for each in document["checkpoints"]:
        each["ended"] -= seconds
    note.write_text(json.dumps(document))


def test_flipped_bit_is_named(tmp_path: Path) -> None:
    """The checkpoint before is the newest verified; a restarted agent reads neither of them again."""
    folder = trained(tmp_path)
    age(tmp_path / "blackboxes/job/0.checkpoints", 60)
    state = folder / "step-00000030" / "state.pt"
    flip(state, 8 * (state.stat().st_size // 2))
    flags = ("--collectors", "ranks,checkpoints", "--checkpoint-bytes-per-second", "1e9")
    flags += ("--state-directory", str(tmp_path / "state"), "--intervals-seconds", "checkpoints=0.2")
    damaged = re.compile(r"^rankwatch_checkpoint_damaged_step\{(.*)\} 30.0$", re.MULTILINE)
    for done in (1, 0):
        with agent_process(tmp_path, *flags) as agent:

            def holds(line: str) -> bool:
                return re.search(line, agent.page(), re.MULTILINE) is not None

            until(lambda: holds(r"^rankwatch_checkpoint_verified_step\{.*\} 20.0$"), "step 20 is verified")
            found = damaged.search(agent.page())
            assert found is not None
            assert f'path="{folder}/step-00000030"' in found[1]
            assert 'file="state.pt"' in found[1]
            assert 'damage="flipped"' in found[1]
            assert re.search(r'tensor="(model|optimizer)\.[\w.]+', found[1]), found[1]
            assert holds(rf'^rankwatch_checkpoint_verifications_total\{{.*outcome="damaged".*\}} {done}.0$')
            if not done:
                _raises_alert(tmp_path, agent, f"{folder}/step-00000030")


def _raises_alert(directory: Path, agent: AgentProcess, path: str) -> None:
    """A page, by a Prometheus that starts now."""
    config = RuleConfig.for_demo()
    with monitored_system(directory, config, (), more_agents=(agent,)) as system:
        damage = {"path": path, "file": "state.pt", "damage": "flipped"}
        alert = system.alert("job", Alert.CHECKPOINT_AT_RISK, reason="damaged", **damage)
        assert complete(alert, config), str(alert)
        assert alert.labels["severity"] == "critical"
        assert f"Checkpoint {path} of run job, step 30, is damaged" in alert.annotations["description"]
        assert f"tensor {alert.labels['tensor']} is flipped" in alert.annotations["description"]
