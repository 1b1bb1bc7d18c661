"""Whom a stalled run waits for: missing ranks, ranks in another collective, or unresponsive ranks.

Missing ranks, in the order in which they are believed; others wait for them while they wait for nobody:

- *disappeared*: the rank ran after its peers had started and is not there any more, while peers wait.
- *not_enqueued*: in some process group others have enqueued a collective that it has not, and it waits for
  nobody itself. A victim of another group's hang has not enqueued it either, but waits there.
- *not_in_collective*: it waits in no collective while most ranks do.

A wait accuses others only once it has lasted; it clears the waiting rank at once.

If every rank waits and the collectives do not match, a rank is mismatched if it differs from the majority of
its group in the operation; or else if it has left out the collective in which most of its group wait, and
waits where most do not.

If all ranks wait in the same collective, the flight recorder still tells ranks apart, as it answers while
Python hangs: if a rank's no longer answers and most others do, its whole process is stopped (*unresponsive*).
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.nodes import NODE, RUNNING_RANKS, SILENT, SILENT_RANKS
from rankwatch_alerts.recording.stall_places import (
    ALIVE,
    ENQUEUED,
    INCOMPLETE,
    WAITED,
    WAITING,
    WAITING_SHARE,
    lasting,
)
from rankwatch_alerts.rules import GROUP, MEMBER, RANK, RUN, RecordingRule, duration, recorded

BEHIND = "rank_group:rankwatch_collectives_behind:stalled"
DISAPPEARED = "rank:rankwatch_stall_disappeared:bool"
NOT_IN_COLLECTIVE = "rank:rankwatch_stall_not_in_collective:bool"
MISSING = "rank:rankwatch_stall_missing:bool"
ALL_WAIT = "run:rankwatch_stall_all_waiting:count"
COMPLETED = "rank_group:rankwatch_collective_last_completed:stalled"
SIGNATURE = "rank_group:rankwatch_collective_oldest_incomplete_signature:stalled"
MISMATCHED = "rank_group:rankwatch_collectives_mismatched:bool"
DESYNCHRONISED = "run:rankwatch_collectives_desynchronised:bool"
UNRESPONSIVE = "rank:rankwatch_stall_unresponsive:bool"
ROOT_CAUSE = "rank:rankwatch_stall_root_cause:bool"

_RECORDER = '{source="flight_recorder"}'
_LAST_START = "rankwatch_node_last_start_timestamp_seconds"
_SILENT = "rankwatch_flight_recorder_silent_seconds"


def stall_cause_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From the places in a stall to the ranks it waits for. The rules build on each other."""
    return (
        *_missing_rules(config),
        *_signature_rules(config),
        _mismatched_rule(config),
        recorded(
            DESYNCHRONISED,
            f"""
            group by ({RUN}) ({MISMATCHED})
            or
            group by ({RUN}) (max by ({GROUP}) ({SIGNATURE}) != min by ({GROUP}) ({SIGNATURE}))
            """,
        ),
        *_root_cause_rules(config),
    )


def _missing_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The missing ranks, the most believable reason first. More ranks must wait than are blamed."""
    fewer_than_wait = f"< count by ({RUN}) {lasting(WAITING, config)}"
    return (
        recorded(
            BEHIND,
            f"""
            (
              max by ({GROUP}) ({ENQUEUED})
              - on ({GROUP}) group_right ()
              {ENQUEUED}
              > 0
            )
            and on ({GROUP})
            {lasting(INCOMPLETE, config)}
            """,
        ),
        _disappeared_rule(config),
        _not_in_collective_rule(config),
        recorded(
            MISSING,
            f"""
            label_replace(
              {DISAPPEARED}
              and on ({RUN})
              (count by ({RUN}) ({DISAPPEARED}) {fewer_than_wait}),
              "reason", "disappeared", "", ""
            )
            or on ({RUN})
            label_replace(
              group by ({RANK}) ({BEHIND}) and {NOT_IN_COLLECTIVE},
              "reason", "not_enqueued", "", ""
            )
            or on ({RUN})
            label_replace(
              {NOT_IN_COLLECTIVE}
              and on ({RUN})
              (count by ({RUN}) ({NOT_IN_COLLECTIVE}) {fewer_than_wait}),
              "reason", "not_in_collective", "", ""
            )
            """,
        ),
    )


def _disappeared_rule(config: RuleConfig) -> RecordingRule:
    """Ended ranks at once, unless they waited before; ranks without telemetry after the absence window.

    Nobody misses ranks of an earlier, larger world: they were silent before the present ranks started.
    """
    return recorded(
        DISAPPEARED,
        f"""
        group by ({RANK}) (
          rankwatch_rank_end_timestamp_seconds
          > on ({RUN}) group_left ()
          max by ({RUN}) ({_LAST_START})
          or
          {SILENT_RANKS}
          and on ({NODE})
          ({SILENT} < time() - {config.absence_window_seconds:g})
        )
        unless on (cluster, run, rank)
        {RUNNING_RANKS}
        unless on ({RANK})
        {WAITED}
        and on ({RUN})
        {lasting(WAITING, config)}
        """,
    )


def _not_in_collective_rule(config: RuleConfig) -> RecordingRule:
    """A rank that still calls collectives is slow at most; where it stands is chance."""
    before = f"{ENQUEUED} offset {duration(config.stall_for_seconds)}"
    return recorded(
        NOT_IN_COLLECTIVE,
        f"""
        {ALIVE}
        unless on (cluster, run, rank)
        {WAITING}
        unless on ({RANK})
        ({ENQUEUED} != {before})
        """,
    )


def _signature_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What each rank calls at the place where most of its group stand, in runs where every rank waits."""
    return (
        recorded(
            ALL_WAIT,
            f"""
            (count by ({RUN}) {lasting(WAITING, config)} == count by ({RUN}) ({ALIVE}))
            unless on ({RUN})
            {MISSING}
            """,
        ),
        recorded(
            COMPLETED,
            f"""
            max by ({MEMBER}) (
              rankwatch_collective_last_completed{_RECORDER}
              and on ({RANK}) {ALIVE}
            )
            """,
        ),
        recorded(
            SIGNATURE,
            f"""
            max by ({MEMBER}) (
              rankwatch_collective_oldest_incomplete_signature{_RECORDER}
              and on ({MEMBER})
              ({COMPLETED} == on ({GROUP}) group_left () quantile by ({GROUP}) (0.5, {COMPLETED}))
              and on ({MEMBER}) {INCOMPLETE}
              and on ({RUN}) {ALL_WAIT}
            )
            """,
        ),
    )


def _mismatched_rule(config: RuleConfig) -> RecordingRule:
    """Another operation at the same place; or else another number of collectives.

    Numbers mean nothing unless all ranks started together, because a rank that restarted alone counts anew.
    Nor do they where PyTorch's own numbers are equal: the hooks of one rank began later than its peers'.
    """
    own = f"(rankwatch_collective_last_enqueued{_RECORDER} and on ({RANK}) {ALIVE})"
    return recorded(
        MISMATCHED,
        f"""
            label_replace({_minority(SIGNATURE, INCOMPLETE)},
              "reason", "operation", "", ""
            )
            or on ({RUN})
            label_replace({_other_number()}
              unless on ({GROUP}) (stddev by ({GROUP}) {own} == 0)
              and on ({RUN}) {ALL_WAIT}
              and on ({RUN})
              (
                max by ({RUN}) ({_LAST_START})
                - run:rankwatch_rank_start_timestamp_seconds:min
                < {config.stall_fallback_seconds:g}
              ),
              "reason", "number", "", ""
            )
            """,
    )


def _other_number() -> str:
    """Ranks that have not reached the collective where most of a group wait, and wait where most do not.

    Being behind is not enough: a victim that waits for the root cause in a small group is behind in the large
    one. And where hosts run ahead of their devices, how far each is ahead is chance.
    """
    return f"""
              group by ({MEMBER}) ({BEHIND})
              and on ({GROUP}) ({WAITING_SHARE} > 0.5)
              unless on ({RANK}) ({INCOMPLETE} unless on ({GROUP}) ({WAITING_SHARE} < 0.5))"""


def _minority(series: str, among: str) -> str:
    """Ranks whose value differs from that of most ranks of their group which have `among`.

    If most values are the same, the median is that value.
    """
    median = f"quantile by ({GROUP}) (0.5, {series})"
    return f"""
              group by ({MEMBER}) (
                {series}
                != on ({GROUP}) group_left ()
                {median}
              )
              and on ({GROUP})
              (
                2 * count by ({GROUP}) ({series} == on ({GROUP}) group_left () {median})
                > count by ({GROUP}) ({among})
              )"""


def _root_cause_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The missing ranks; or else the unresponsive ones, if they ever answered and more ranks still do."""
    answers = f"({_SILENT} < {config.stall_floor_seconds:g})"
    return (
        recorded(
            UNRESPONSIVE,
            f"""
            {ALIVE}
            and on ({RANK}) ({_SILENT} >= {config.stall_floor_seconds:g})
            """,
        ),
        recorded(
            ROOT_CAUSE,
            f"""
            {MISSING}
            or on ({RUN})
            label_replace(
              {UNRESPONSIVE}
              and on ({RUN}) {ALL_WAIT}
              and on ({RUN})
              (count by ({RUN}) ({UNRESPONSIVE}) < count by ({RUN}) ({ALIVE} and on ({RANK}) {answers}))
              unless on ({RUN}) {DESYNCHRONISED},
              "reason", "unresponsive", "", ""
            )
            """,
        ),
    )
