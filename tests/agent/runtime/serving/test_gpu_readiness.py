"""/readyz/gpus tells of GPUs that are missing; /readyz does not depend on them."""

from __future__ import annotations

import pytest

from rankwatch.conventions import metric
from rankwatch_agent.runtime.collector import Collection, Series
from rankwatch_agent.runtime.exposition import Exposition
from rankwatch_agent.runtime.pages import build_routes
from rankwatch_agent.runtime.supervisor import Snapshot
from support.agent.process import fetch
from support.servers.routes import serving

EXPECTED = metric("rankwatch_gpus_expected")
VISIBLE = metric("rankwatch_gpus_visible")


@pytest.mark.parametrize(
    ("expected", "visible", "status", "text"),
    [
        (8, 8, 200, "ok: 8 of 8 GPUs answer"),
        (8, 9, 200, "ok: 9 of 8 GPUs answer"),
        (8, 7, 503, "7 of 8 GPUs on the PCI bus answer; rankwatch_gpu_up names those lost"),
        (8, 0, 503, "0 of 8 GPUs on the PCI bus answer; the agent's log says why collector gpu fails"),
        (8, None, 503, "unknown: GPUs have not been counted"),
        (None, 8, 503, "unknown: GPUs have not been counted"),
        (None, None, 503, "unknown: GPUs have not been counted"),
        (0, None, 200, "ok: no GPUs on the PCI bus"),
    ],
)
def test_readiness_of_gpus_follows_the_counts(
    expected: float | None, visible: float | None, status: int, text: str
) -> None:
    """The counts may come from different collectors; what is not counted is not healthy."""
    counted = [(EXPECTED, expected), (VISIBLE, visible)]
    collections = tuple(Collection([Series(each, (), value)]) for each, value in counted if value is not None)
    with serving(build_routes(lambda: Snapshot(collections, ()), Exposition({}))) as (_, address):
        reply = fetch(address, "/readyz/gpus")
        assert (reply.status, reply.body.decode()) == (status, f"{text}\n")
        assert fetch(address, "/readyz").status == 200
        assert b'href="/readyz/gpus"' in fetch(address, "/").body
