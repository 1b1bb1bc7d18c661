"""Alerts as series: which ones fire, for how long, and which run, rank and node suffer; and the ranks that
rules suspect now, and nodes with a broken part, each with its cause and what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rankwatch_alerts import HARDWARE_ALERTS, Alert, RuleConfig
from rankwatch_dashboards.panels import CLUSTER, RANKS, RUN

_FIRING = 'alertname=~"Rankwatch.+", severity!="info", alertstate="firing"'
RANK_OF_GPU = "gpu:rankwatch_rank_start_timestamp_seconds:latest"
_RUN_OF_NODE = "node:rankwatch_rank_start_timestamp_seconds:latest"


def selected(matchers: str) -> str:
    """Return the selector. Rulers write ALERTS; Grafana, if set to, writes its state history beside it."""
    return f'{{__name__=~"ALERTS|GRAFANA_ALERTS", {_FIRING}, {matchers}}}'


def firing(matchers: str = CLUSTER, *, since: bool = False) -> str:
    """Return the firing alerts with these labels; with `since`, when each began, which Grafana does not
    say."""
    return _alike(_firing(matchers, since=since))


def of_runs(matchers: str = CLUSTER, *, since: bool = False) -> str:
    """Select firing alerts, those on hardware with the run and the rank that use the GPU or the node."""
    hardware = _firing(f"{matchers}, {named(HARDWARE_ALERTS)}", since=since)
    rank = f"({RANK_OF_GPU}{{{CLUSTER}}} > bool 0)"
    found = (
        f"({hardware}) * on (cluster, node, gpu) group_left (run, rank) {rank}",
        f"({hardware}) * on (cluster, node) group_left (run) ({_RUN_OF_NODE}{{{CLUSTER}}} > bool 0)",
        _firing(matchers, since=since),
    )
    return _alike(" or ignoring (run, rank) ".join(found))


def _firing(matchers: str, *, since: bool) -> str:
    if since:
        return f"ALERTS_FOR_STATE{{{matchers}}} and ignoring (alertstate) ALERTS{{{_FIRING}, {matchers}}}"
    return selected(matchers)


def _alike(alerts: str) -> str:
    """Turn titles of Grafana's rules into names of alerts, and a cause into the reason."""
    alike = f'label_replace({alerts}, "alertname", "$1", "alertname", "(Rankwatch[A-Za-z]+).*")'
    return f'label_join({alike}, "reason", "", "reason", "cause")'


def named(alerts: Iterable[Alert]) -> str:
    """Return the matcher of these alerts, also where titles of Grafana's rules say more after the name."""
    names = "|".join(each.removeprefix("Rankwatch") for each in alerts)
    return f'alertname=~"Rankwatch({names})( .+)?"'


STRAGGLER = "rank:rankwatch_straggler:slowdown"
DATA_SKEW = "rank:rankwatch_data_skew:ratio"
FAILED = "run:rankwatch_run_failed_timestamp_seconds:max"
RANK = "cluster, run, rank, node"


def suspects(matchers: str, *, ranks_only: bool = False) -> str:
    """Return series with the labels run, rank, node and cause, also before their alert fires: 1 for a rank.

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
    """Return who uses the part of a node that an alert is on."""
    gpu = "!=" if "gpu" in part else "="
    broken = _as_cause(firing(f'{CLUSTER}, gpu{gpu}"", {named(HARDWARE_ALERTS)}'))
    return f"{users} * on ({part}) group_left (cause) topk by ({part}) (1, {broken})"


def first_non_finite(matchers: str) -> str:
    """Return the step at which a rank was first with a value that was not finite, of the loss if it was one.

    A gradient norm is that of all ranks: the loss says whose it was.
    """
    first = "rank:rankwatch_scalar_first_nonfinite_step:first"
    of_loss, all_of_them = (f"{first}{{{matchers}{name}}}" for name in (', name="loss"', ""))
    return f"({of_loss} or {all_of_them} unless on (cluster, run) {of_loss})"


def failing_checkpoints(matchers: str) -> str:
    """Select firing alerts on checkpoints that fail."""
    return firing(f'{matchers}, {named((Alert.CHECKPOINT_AT_RISK,))}, reason="failed"')


def failed_checkpoints(matchers: str, label: str) -> str:
    """Return failing checkpoints of which the error is known: it stands in `label`."""
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
    """Yield what rules and agents record of suspected ranks."""

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


_RANK_OF_RUN = "run, rank, node"


def evidence() -> str:
    """Return one series for each rank of the run of which something is known, with the label evidence."""
    found = " or ".join(_evidence())
    return f"topk by ({_RANK_OF_RUN}) (1, group by ({_RANK_OF_RUN}, evidence) ({found}))"


def _evidence() -> Iterator[str]:
    """Yield values as labels, which only `count_values` turns them into."""
    steps = f'count_values by ({_RANK_OF_RUN}, name) ("step", {first_non_finite(RANKS)})'
    yield f'label_join({steps}, "evidence", " is not finite from step ", "name", "step")'
    good = f"max by (cluster, run) (rankwatch_checkpoint_last_good_step{{{RUN}}})"
    good = f'count_values by (cluster, run) ("step", {good})'
    joined = f"{failing_checkpoints(RANKS)} * on (cluster, run) group_left (step) {good}"
    steps = f'label_join({joined}, "evidence", " fails, last good step ", "operation", "step")'
    yield f"{failed_checkpoints(RANKS, 'evidence')} or on ({_RANK_OF_RUN}) {steps}"
    error = f"(rankwatch_gpu_xid_last_timestamp_seconds{{{CLUSTER}}} > time() - 3600)"
    rank, index = f"{RANK_OF_GPU}{{{RANKS}}}", f"rankwatch_gpu_info{{{CLUSTER}}}"
    error = f"{error} * on (cluster, node, gpu) group_left (run, rank) {rank}"
    error = f"{error} * on (cluster, node, gpu) group_left (index) {index}"
    error = f'label_join({error}, "error", " of GPU ", "xid", "index")'
    yield f'label_replace({error}, "evidence", "XID $1", "error", "(.+)")'
    ended = (
        f"rankwatch_run_attempt_end_timestamp_seconds{{{RANKS}}} and on ({_RANK_OF_RUN}) {FAILED}{{{RANKS}}}"
    )
    yield f'label_join({ended}, "evidence", ": ", "exception", "message")'
    behind = f"rank_group:rankwatch_collectives_behind:stalled{{{RANKS}}}"
    behind = f'label_join({behind}, "place", ", ranks ", "group", "members")'
    yield f'label_replace({behind}, "evidence", "behind in group $1", "place", "(.+)")'
    share = f"topk by ({_RANK_OF_RUN}) (1, rank_phase:rankwatch_step_local_seconds:excess_share{{{RANKS}}})"
    share = f"round(100 * {share} and on ({_RANK_OF_RUN}) {STRAGGLER}{{{RANKS}}})"
    percent = f'count_values by ({_RANK_OF_RUN}, phase) ("percent", {share})'
    yield f'label_join({percent}, "evidence", " % of its excess is ", "percent", "phase")'
    skew = f'count_values by ({_RANK_OF_RUN}) ("times", round({DATA_SKEW}{{{RANKS}}}, 0.01))'
    yield f'label_replace({skew}, "evidence", "loss is $1 times the median rank\'s", "times", "(.+)")'
