"""The pages of a large job, made from a small one, have the ranks and groups of the large job."""

from __future__ import annotations

import re

import pytest

from .rules_pages import NODE_RANKS, Job, Pages
from .rules_template import REPLICAS, STAGES, Line, Template

_NODES = STAGES * REPLICAS // NODE_RANKS
_BEGAN = 1_000.0


def _line(name: str, node: int, replica: int, members: str, rate: float) -> Line:
    stage = node * NODE_RANKS // REPLICAS
    labels = {"rank": str(stage * REPLICAS + replica), "group": "g", "members": members}
    return Line(name, labels, 5.0, rate)


def _lines(name: str, rate: float) -> dict[int, list[Line]]:
    """One line for each rank of the small job, with the group of its replica's stages."""
    return {
        node: [
            _line(name, node, replica, f"{replica}-{replica + 112}/16", rate)
            for replica in range(node % 2 * NODE_RANKS, (node % 2 + 1) * NODE_RANKS)
        ]
        for node in range(_NODES)
    }


def _pages(job: Job) -> Pages:
    template = Template(
        training=_lines("rankwatch_steps_total", 2.0),
        last_collectives=_lines("rankwatch_collective_last_enqueued", 0.0),
        hung=_lines("rankwatch_collective_last_enqueued", 0.0),
    )
    return Pages(job, template, ['own{{node="{node}"}} {now!r}\n'], _BEGAN)


def test_ranks_and_groups() -> None:
    """Each rank is on one page, with the stages of its replica as a group: ranks are in Megatron's order."""
    job = Job.of(256)
    pages = _pages(job)
    found = []
    for node in range(job.nodes):
        text = pages.of(node, _BEGAN).decode()
        found += re.findall(r'rankwatch_steps_total\{rank="(\d+)",group="g",members="([^"]*)"', text)
    assert sorted(int(rank) for rank, _ in found) == list(range(256))
    assert {members for rank, members in found if int(rank) % job.replicas == 3} == {"3-227/32"}


def test_faulty_node() -> None:
    """Both faulty ranks are on the nodes that copy the faulty nodes of the small job."""
    job = Job.of(512)
    assert job.slow_rank // NODE_RANKS % (job.replicas // NODE_RANKS) == job.faulty_node
    assert job.asleep_rank // NODE_RANKS % (job.replicas // NODE_RANKS) == job.faulty_node


def test_stall() -> None:
    """After the stall nothing of the run grows and its last collectives are replaced; the agent continues."""
    pages = _pages(Job.of(128))
    assert " 11.0\n" in pages.of(0, _BEGAN + 3.0).decode()
    pages.stall(_BEGAN + 4.0)
    page = pages.of(0, _BEGAN + 90.0).decode()
    assert 'own{node="node-0"} 1090.0\n' in page
    assert page.count("rankwatch_steps_total") == page.count(" 13.0\n") == NODE_RANKS
    assert page.count("rankwatch_collective_last_enqueued") == NODE_RANKS


@pytest.mark.parametrize("ranks", [64, 200])
def test_partly_filled_nodes(ranks: int) -> None:
    """Eight replicas of a stage share a node, and no job is smaller than the small one."""
    with pytest.raises(ValueError, match=f"{ranks} ranks"):
        Job.of(ranks)
