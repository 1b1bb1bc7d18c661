"""The error for what a person can put right: one sentence on stderr, exit status 2, no traceback."""

from __future__ import annotations

from rankwatch_agent.runtime.errors import AgentError


class UserError(AgentError):
    """A wrong flag, file, value or environment; the message is the whole sentence the person reads."""
