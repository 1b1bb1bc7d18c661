"""Label matchers the panels share."""

from __future__ import annotations

RUN = 'cluster=~"$cluster", run=~"$run"'
"""The chosen run."""
RANKS = f'{RUN}, rank=~"$rank"'
"""The chosen ranks of it."""
ON_ITS_NODES = f"and on (cluster, node) group by (cluster, node) (rankwatch_rank_info{{{RUN}}})"
"""Appended to a series of a machine: only the nodes that hold ranks of the run."""
MOST_SERIES = 20
"""Lines per panel; beyond it nothing can be read, and thousands of ranks would stop Grafana."""


def most(expression: str, series: int = MOST_SERIES) -> str:
    """The largest series of an expression at each instant."""
    return f"topk({series}, {expression})"
