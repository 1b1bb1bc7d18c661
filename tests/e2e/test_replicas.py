"""A flipped bit in a parameter of one of four replicas: a job under torchrun, an agent and real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_alerts import Alert, RuleConfig
from support.e2e.monitored_system import complete, monitored_system
from support.servers.prometheus import poll, query, require

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
NODE = "n0"
CONFIG = RuleConfig.for_demo()
RANKS, ODD = 4, 2
EVERY, FLIPPED_AT = 20, 45
NEXT_STEP = 60


def test_flipped_bit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alert names the rank, and no step before the flip. Replicas that are equal raise none."""
    require("prometheus", "prometheus-alertmanager")
    monkeypatch.setenv("RANKWATCH_FINGERPRINT_STEPS", str(EVERY))
    with monitored_system(tmp_path, CONFIG, (NODE,)) as system:
        system.train_under_torchrun(
            "flipped", (f"flip-bit:rank={ODD},from={FLIPPED_AT}",), node=NODE, ranks=RANKS
        )
        system.train_under_torchrun("equal", (), node=NODE, ranks=2)
        alert = system.alert("flipped", Alert.REPLICAS_DISAGREE, rank=str(ODD), node=NODE)
        assert complete(alert, CONFIG), alert
        equal = 'max_over_time(run:rankwatch_replicas_equal:step{run="flipped"}[10m]) >= %d'
        assert not query(system.prometheus_url, equal % FLIPPED_AT)
        differ = 'min_over_time(rank:rankwatch_replica_differs:step{run="flipped"}[10m]) < %d'
        assert not query(system.prometheus_url, differ % NEXT_STEP)
        expression = 'run:rankwatch_replicas_equal:step{run="equal"} >= 100'
        poll(lambda: bool(query(system.prometheus_url, expression)), 120.0, "equal replicas at step 100")
        named = {each.labels["rank"] for each in system.delivered() if each.name == Alert.REPLICAS_DISAGREE}
        assert named == {str(ODD)}
