"""The errors that the agent raises on purpose, all of them:

AgentError
├── UserError            a flag, a file or an input cannot be used; exit status 2
├── NotApplicable        a collector's source does not exist on this machine
├── CollectError         a collector's source exists and could not be read
│   ├── OutOfDescriptorsError  file descriptors have run out (sources.kernel_files)
│   ├── WorkerTimeoutError   the NVML worker did not answer in time (sources.gpu)
│   └── WorkerEndedError     the NVML worker ended (sources.gpu)
├── FlightRecorderError  a rank's flight recorder could not be read (training)
└── EvidenceError        a part of an evidence bundle is missing (incidents)

This module imports nothing: the command line needs it before everything else.
"""

from __future__ import annotations


class AgentError(Exception):
    """Base of every error that the agent raises on purpose."""


class UserError(AgentError):
    """A mistake that the user can correct. The message is the one sentence that the user reads."""


class NotApplicable(AgentError):  # noqa: N818  a state of the machine, not an error
    """The source does not exist on this machine: it is absent, not broken."""


class CollectError(AgentError):
    """The source exists and could not be read. The message says what failed and why."""
