"""Ranks that rules suspect now, each with its cause in words."""

from __future__ import annotations

from collections.abc import Iterable

from rankwatch_alerts import HARDWARE_ALERTS, Alert
from rankwatch_alerts.recording.learning import FIRST_NON_FINITE
from rankwatch_alerts.recording.life import FAILED
from rankwatch_dashboards.firing import firing, named


def suspects(matchers: str) -> str:
    """Series with the labels run, rank, node and cause, also before their alert fires."""
    of_hardware = firing(f'{matchers}, rank!="", {named(HARDWARE_ALERTS)}')
    others = firing(f'{matchers}, rank!=""')
    found = (*_recorded(matchers), f'label_join({of_hardware}, "cause", "", "alertname")')
    return (
        f"group by (cluster, run, rank, node, cause) ({' or '.join(found)} "
        f'or on (cluster, run, rank, node) label_join({others}, "cause", "", "alertname"))'
    )


def first_non_finite(matchers: str) -> str:
    """The step at which a rank was the first with a value that was not finite, of the loss if it was one.

    A gradient norm is that of all ranks: the loss says whose it was.
    """
    of_loss, all_of_them = (f"{FIRST_NON_FINITE}{{{matchers}{name}}}" for name in (', name="loss"', ""))
    return f"({of_loss} or {all_of_them} unless on (cluster, run) {of_loss})"


def failed_checkpoints(matchers: str, label: str) -> str:
    """Firing alerts on checkpoints that fail, where the error is known: it stands in `label`."""
    of_operation = "cluster, run, rank, node, operation"
    fires = firing(f'{matchers}, alertname="{Alert.CHECKPOINT_FAILED}"')
    known = f"topk by ({of_operation}) (1, rankwatch_checkpoint_last_failure_info{{{matchers}}})"
    joined = f"{fires} * on ({of_operation}) group_left (exception, message) {known}"
    error = f'label_join({joined}, "{label}", ": ", "exception", "message")'
    # Without a number that its words repeat; as a cause also without the name of a file.
    end = "(?:: (?:['/].*)?)?" if label == "cause" else "(?:: )?"
    shown = rf"(?:: )?(?:([A-Za-z_.]+: )\\[Errno [0-9]+\\] )?(.+?){end}"
    return f'label_replace({error}, "{label}", "$1$2", "{label}", "{shown}")'


def _recorded(matchers: str) -> Iterable[str]:
    """What rules and agents record of suspected ranks."""

    def of(series: str) -> str:
        return f"{series}{{{matchers}}}"

    def because(cause: str, series: str) -> str:
        return f'label_replace({series}, "cause", "{cause}", "", "")'

    slow = of("rank:rankwatch_straggler_costly:slowdown")
    of_rank = "cluster, run, rank, node"
    grown = f"topk by ({of_rank}) (1, {of('rank_phase:rankwatch_step_local_seconds:excess_share')})"
    yield f'label_join({of("rank:rankwatch_stall_root_cause:bool")}, "cause", "", "reason")'
    yield because("lost", of("rank:rankwatch_rank_lost:waited_seconds"))
    yield (
        f'(label_replace({slow} * on ({of_rank}) group_left (phase) {grown}, "cause", "slow: $1", '
        f'"phase", "(.+)") or ignoring (cause, phase) {because("slow", slow)})'
    )
    yield failed_checkpoints(matchers, "cause")
    yield because("first NaN or infinity", first_non_finite(matchers))
    yield because("replica differs", of("rank:rankwatch_replica_differs:step"))
    yield because("data differs", of("rank:rankwatch_data_skew:ratio"))
    failed = f'{FAILED}{{{matchers}, rank!=""}}'
    ended = f'rankwatch_run_attempt_end_timestamp_seconds{{{matchers}, rank!="", message!=""}}'
    ended = f"{ended} and on ({of_rank}) {failed}"
    yield (
        f'(label_join({ended}, "cause", ": ", "exception", "message") '
        f'or on ({of_rank}) label_join({failed}, "cause", " ", "kind", "exception"))'
    )
