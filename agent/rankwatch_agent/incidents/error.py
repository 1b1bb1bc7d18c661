"""Why a part of the evidence could not be had."""

from __future__ import annotations

import errno

from rankwatch.conventions.incidents import EvidenceFault
from rankwatch_agent.runtime.errors import AgentError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class EvidenceError(AgentError):
    """A part of a bundle, or the whole, could not be had; `fault` is the reason that is counted."""

    def __init__(self, fault: EvidenceFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


def write_error(what: str, error: OSError) -> EvidenceError:
    """Could not write; a full file system is told apart."""
    fault = EvidenceFault.NO_SPACE if error.errno in _FULL else EvidenceFault.WRITE
    return EvidenceError(fault, f"could not write {what}: {error.strerror or error}")
