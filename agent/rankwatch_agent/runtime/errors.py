"""The base of the agent's errors, apart from what collects: the command line takes it up before all else."""

from __future__ import annotations


class AgentError(Exception):
    """Base of all errors the agent raises on purpose."""
