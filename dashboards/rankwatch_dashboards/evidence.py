"""What rules have measured about a suspected rank, in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from rankwatch_dashboards.firing import RANK_OF_GPU
from rankwatch_dashboards.panels import CLUSTER, RANKS, RUN
from rankwatch_dashboards.suspects import (
    DATA_SKEW,
    FAILED,
    STRAGGLER,
    failed_checkpoints,
    failing_checkpoints,
    first_non_finite,
)

_RANK = "run, rank, node"


def evidence() -> str:
    """One series for each rank of the run of which something is known, with the label evidence."""
    found = " or ".join(_found())
    return f"topk by ({_RANK}) (1, group by ({_RANK}, evidence) ({found}))"


def _found() -> Iterator[str]:
    """A value becomes text by `count_values`; nothing else turns it into a label."""
    steps = f'count_values by ({_RANK}, name) ("step", {first_non_finite(RANKS)})'
    yield f'label_join({steps}, "evidence", " is not finite from step ", "name", "step")'
    good = f"max by (cluster, run) (rankwatch_checkpoint_last_good_step{{{RUN}}})"
    good = f'count_values by (cluster, run) ("step", {good})'
    joined = f"{failing_checkpoints(RANKS)} * on (cluster, run) group_left (step) {good}"
    steps = f'label_join({joined}, "evidence", " fails, last good step ", "operation", "step")'
    yield f"{failed_checkpoints(RANKS, 'evidence')} or on ({_RANK}) {steps}"
    error = f"(rankwatch_gpu_xid_last_timestamp_seconds{{{CLUSTER}}} > time() - 3600)"
    rank, index = f"{RANK_OF_GPU}{{{RANKS}}}", f"rankwatch_gpu_info{{{CLUSTER}}}"
    error = f"{error} * on (cluster, node, gpu) group_left (run, rank) {rank}"
    error = f"{error} * on (cluster, node, gpu) group_left (index) {index}"
    error = f'label_join({error}, "error", " of GPU ", "xid", "index")'
    yield f'label_replace({error}, "evidence", "XID $1", "error", "(.+)")'
    ended = f"rankwatch_run_attempt_end_timestamp_seconds{{{RANKS}}} and on ({_RANK}) {FAILED}{{{RANKS}}}"
    yield f'label_join({ended}, "evidence", ": ", "exception", "message")'
    behind = f"rank_group:rankwatch_collectives_behind:stalled{{{RANKS}}}"
    behind = f'label_join({behind}, "place", ", ranks ", "group", "members")'
    yield f'label_replace({behind}, "evidence", "behind in group $1", "place", "(.+)")'
    share = f"topk by ({_RANK}) (1, rank_phase:rankwatch_step_local_seconds:excess_share{{{RANKS}}})"
    share = f"round(100 * {share} and on ({_RANK}) {STRAGGLER}{{{RANKS}}})"
    percent = f'count_values by ({_RANK}, phase) ("percent", {share})'
    yield f'label_join({percent}, "evidence", " % of its excess is ", "percent", "phase")'
    skew = f'count_values by ({_RANK}) ("times", round({DATA_SKEW}{{{RANKS}}}, 0.01))'
    yield f'label_replace({skew}, "evidence", "loss is $1 times the median rank\'s", "times", "(.+)")'
