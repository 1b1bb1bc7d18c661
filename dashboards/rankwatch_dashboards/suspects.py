"""Ranks that rules suspect now, and nodes with a broken part, each with its cause."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch_alerts import HARDWARE_ALERTS, Alert, RuleConfig
from rankwatch_dashboards.firing import RANK_OF_GPU, firing, named
from rankwatch_dashboards.panels import CLUSTER

STRAGGLER = "rank:rankwatch_straggler:slowdown"
DATA_SKEW = "rank:rankwatch_data_skew:ratio"
FAILED = "run:rankwatch_run_failed_timestamp_seconds:max"
RANK = "cluster, run, rank, node"


def suspects(matchers: str, *, ranks_only: bool = False) -> str:
    """Series with the labels run, rank, node and cause, also before their alert fires: 1 for a rank.

    A node whose link or host is at fault has no rank and is 0.5: who shows one suspect shows the rank. With
    `ranks_only` it is left out.
    """
    others = _as_cause(firing(f'{matchers}, rank!=""'))
    ranks = (
        f"group by ({RANK}, cause) ({' or '.join(_recorded(matchers))} "
        f"or {_of_parts('cluster, node, gpu', f'{RANK_OF_GPU}{{{matchers}}}')} "
        f"or on ({RANK}) {others})"
    )
    on_nodes = f"group by (cluster, run, node) (rankwatch_rank_info{{{matchers}}})"
    of_nodes = f"0.5 * group by (cluster, run, node, cause) ({_of_parts('cluster, node', on_nodes)})"
    return ranks if ranks_only else f"({ranks} or {of_nodes})"


def _as_cause(alerts: str) -> str:
    return f'label_join({alerts}, "cause", " ", "alertname", "reason")'


def _of_parts(part: str, users: str) -> str:
    """Who uses the part of a node that an alert is on."""
    gpu = "!=" if "gpu" in part else "="
    broken = _as_cause(firing(f'{CLUSTER}, gpu{gpu}"", {named(HARDWARE_ALERTS)}'))
    return f"{users} * on ({part}) group_left (cause) topk by ({part}) (1, {broken})"


def first_non_finite(matchers: str) -> str:
    """The step at which a rank was the first with a value that was not finite, of the loss if it was one.

    A gradient norm is that of all ranks: the loss says whose it was.
    """
    first = "rank:rankwatch_scalar_first_nonfinite_step:first"
    of_loss, all_of_them = (f"{first}{{{matchers}{name}}}" for name in (', name="loss"', ""))
    return f"({of_loss} or {all_of_them} unless on (cluster, run) {of_loss})"


def failing_checkpoints(matchers: str) -> str:
    """Firing alerts on checkpoints that fail."""
    return firing(f'{matchers}, {named((Alert.CHECKPOINT_AT_RISK,))}, reason="failed"')


def failed_checkpoints(matchers: str, label: str) -> str:
    """Those of them of which the error is known: it stands in `label`."""
    known = f"topk by ({RANK}) (1, rankwatch_checkpoint_last_failure_info{{{matchers}}})"
    joined = f"{failing_checkpoints(matchers)} * on ({RANK}) group_left (exception, message) {known}"
    error = f'label_join({joined}, "{label}", ": ", "exception", "message")'
    # Without a number that its words repeat; as a cause also without the name of a file.
    end = "(?:: (?:['/].*)?)?" if label == "cause" else "(?:: )?"
    shown = rf"(?:: )?(?:([A-Za-z_.]+: )\\[Errno [0-9]+\\] )?(.+?){end}"
    return f'label_replace({error}, "{label}", "$1$2", "{label}", "{shown}")'


_COSTLY = 1 - 1 / RuleConfig().straggler_critical_slowdown
"""Share of its run's time from which a slow rank is worth a place among suspects."""


def _recorded(matchers: str) -> Iterable[str]:
    """What rules and agents record of suspected ranks."""

    def of(series: str) -> str:
        return f"{series}{{{matchers}}}"

    def because(cause: str, series: str) -> str:
        return f'label_replace({series}, "cause", "{cause}", "", "")'

    share = f'run_cause:rankwatch_slow:share{{{matchers}, cause="slow_rank"}}'
    slow = f"(max by ({RANK}) ({share}) > {_COSTLY:.4g})"
    grown = f"topk by ({RANK}) (1, {of('rank_phase:rankwatch_step_local_seconds:excess_share')})"
    yield f'label_join({of("rank:rankwatch_stall_root_cause:bool")}, "cause", "", "reason")'
    yield because("lost", of("rank:rankwatch_rank_lost:waited_seconds"))
    yield (
        f'(label_replace({slow} * on ({RANK}) group_left (phase) {grown}, "cause", "slow: $1", '
        f'"phase", "(.+)") or ignoring (cause, phase) {because("slow", slow)})'
    )
    yield failed_checkpoints(matchers, "cause")
    yield because("first NaN or infinity", first_non_finite(matchers))
    yield because("replica differs", of("rank:rankwatch_replica_differs:step"))
    yield because("data differs", of(DATA_SKEW))
    failed = f'{FAILED}{{{matchers}, rank!=""}}'
    ended = f'rankwatch_run_attempt_end_timestamp_seconds{{{matchers}, rank!="", message!=""}}'
    ended = f"{ended} and on ({RANK}) {failed}"
    yield (
        f'(label_join({ended}, "cause", ": ", "exception", "message") '
        f'or on ({RANK}) label_join({failed}, "cause", " ", "kind", "exception"))'
    )
