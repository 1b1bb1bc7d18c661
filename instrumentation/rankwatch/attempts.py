"""Which start of the job this is, and the trace of whoever started it, as the launcher's variables say.

An attempt is one start of all ranks. The scheduler counts how often it has started the job, and torchrun how
often it has started the ranks since, beginning anew with each start of the job. The number of the attempt
joins both, so that it never repeats, and all nodes find the same one without asking each other.

torchrun's count alone is not the same on all nodes: a node that is only told to restart, because another one
failed, does not count that. So the black boxes of the node count too: see `blackbox.earlier`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from rankwatch.conventions import environment

MOST_ATTEMPTS = 1_000_000
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_CYCLE_LINK = re.compile(r"cycle_info\.([!-~]{1,128})\.current")
_MOST_RESTARTS = "TORCHELASTIC_MAX_RESTARTS"
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def attempt_by(env: Mapping[str, str]) -> int:
    """The number of the attempt, from 0, by what scheduler and launcher count. A variable that is no number
    counts as none."""
    before, restarts, most_restarts = _counted(env)
    return min(before * (most_restarts + 1) + restarts, MOST_ATTEMPTS)


def most_attempts_by(env: Mapping[str, str]) -> int:
    """How many attempts there may be, unless the scheduler starts the job again; 0 if the launcher does not
    say."""
    if _count(env, _MOST_RESTARTS) is None:
        return 0
    before, _, most_restarts = _counted(env)
    return min((before + 1) * (most_restarts + 1), MOST_ATTEMPTS)


def started_before_by(env: Mapping[str, str]) -> tuple[int, int]:
    """How often the scheduler has started the job before, and how often the launcher the ranks since."""
    requeues, restarts, _ = _counted(env)
    return requeues, restarts


def _counted(env: Mapping[str, str]) -> tuple[int, int, int]:
    """How often the scheduler has started the job before, how often torchrun has started the ranks since, and
    how often it may."""
    started_before = _count(env, environment.ATTEMPT)
    if started_before is None:
        started_before = _count(env, "SLURM_RESTART_COUNT")
    if started_before is None:
        started_before = max(0, (_count(env, "AWS_BATCH_JOB_ATTEMPT") or 1) - 1)  # counts from 1
    restarts = _count(env, "TORCHELASTIC_RESTART_COUNT") or 0
    return started_before, restarts, max(restarts, _count(env, _MOST_RESTARTS) or 0)


def nvrx_job_by(env: Mapping[str, str]) -> str:
    """The job by which NVRx's launcher reports its restart cycles: it names each rank the link to the newest
    one. Empty below other launchers."""
    link = _CYCLE_LINK.fullmatch(env.get("NVRX_CURRENT_CYCLE_INFO", "").rpartition("/")[2])
    return link[1] if link is not None else ""


def as_traceparent(text: str) -> str:
    """The text if it is a traceparent of W3C trace context, else nothing."""
    if _TRACEPARENT.fullmatch(text) is None:
        return ""
    version, trace, span, _ = text.split("-")
    return "" if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN else text


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return min(int(text), MOST_ATTEMPTS) if text.isascii() and text.isdigit() and len(text) < 20 else None
