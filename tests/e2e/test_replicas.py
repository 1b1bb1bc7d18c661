"""A flipped bit in a parameter of one of four replicas: a job under torchrun, an agent, real servers, and the
boxes alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rankwatch_alerts import Alert, RuleConfig
from rankwatch_diagnosis.run.boxes import read_boxes
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.run.folder import find_run
from rankwatch_diagnosis.run.replicas import Replicas, judge_replicas
from rankwatch_diagnosis.run.report import lines
from support.e2e.monitored_system import complete, monitored_system
from support.servers.prometheus import poll, query, require

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NODE = "n0"
CONFIG = RuleConfig.for_demo()
RANKS, ODD = 4, 2
EVERY, FLIPPED_AT = 20, 45
NEXT_STEP = 60
SETTINGS = {"RANKWATCH_FINGERPRINT_STEPS": str(EVERY)}


def test_flipped_bit_is_named(tmp_path: Path) -> None:
    """The boxes name the rank at the next aligned step, the alert names it, too, and no step before the flip.

    Replicas that are equal raise no alert.
    """
    require("prometheus", "prometheus-alertmanager")
    with monitored_system(tmp_path, CONFIG, (NODE,)) as system:
        system.train_under_torchrun(
            "flipped",
            (f"flip-bit:rank={ODD},from={FLIPPED_AT}",),
            node=NODE,
            ranks=RANKS,
            settings=SETTINGS,
        )
        named_in_boxes(tmp_path, tmp_path / NODE / "blackboxes" / "flipped")
        system.train_under_torchrun("equal", (), node=NODE, ranks=2, settings=SETTINGS)
        alert = system.alert("flipped", Alert.REPLICAS_DISAGREE, rank=str(ODD), node=NODE)
        assert complete(alert, CONFIG), alert
        equal = 'max_over_time(run:rankwatch_replicas_equal:step{run="flipped"}[10m]) >= %d'
        assert not query(system.prometheus_url, equal % FLIPPED_AT)
        differ = 'min_over_time(rank:rankwatch_replica_differs:step{run="flipped"}[10m]) < %d'
        assert not query(system.prometheus_url, differ % NEXT_STEP)
        expression = 'run:rankwatch_replicas_equal:step{run="equal"} >= 100'
        poll(lambda: bool(query(system.prometheus_url, expression)), 120.0, "equal replicas at step 100")
        named = [each.labels for each in system.delivered() if each.name == Alert.REPLICAS_DISAGREE]
        # A flipped parameter changes the gradient of one rank, but not their sum: the norms stay equal.
        assert {(each["rank"], each.get("name")) for each in named} == {(str(ODD), None)}
        deviation = 'max(rank:rankwatch_gradient_norm_deviation:ratio{run="flipped"})'
        assert [each["value"][1] for each in query(system.prometheus_url, deviation)] == ["0"]


def named_in_boxes(directory: Path, run: Path) -> None:
    """The rings forget the step of the flip after a while, so they are copied as soon as they show it."""

    def differing() -> bool:
        return run.is_dir() and len(list(run.glob("*.blackbox"))) == RANKS and bool(_judged(run).differing)

    poll(differing, 120.0, "replicas that differ in the boxes")
    copies = shutil.copytree(run, directory / "copies", ignore=shutil.ignore_patterns("*.sock"))
    (found,) = _judged(copies).differing
    assert (found.newest_equal_step, found.differing_step) == (NEXT_STEP - EVERY, NEXT_STEP)
    assert (found.odd_ranks, found.ranks) == ((ODD,), tuple(range(RANKS)))
    assert len(found.parameters) == 1
    line = f"replicas:    rank {ODD} differs from the majority of ranks 0-3 at step {NEXT_STEP}, equal at"
    assert any(each.startswith(line) for each in lines(diagnose_run(copies)))


def _judged(run: Path) -> Replicas:
    return judge_replicas(read_boxes(find_run(run).boxes, copied=None), {})
