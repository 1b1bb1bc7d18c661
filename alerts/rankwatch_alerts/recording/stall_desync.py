"""Which ranks of a stalled run are out of line: every rank waits, and the collectives do not match.

The rank that differs from the majority of its group in the operation is out of line; or else the one that has
left out the collective in which most of its group wait, and waits where most do not. Otherwise nobody is.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.stall_missing import BEHIND, MISSING
from rankwatch_alerts.recording.stall_places import (
    GROUP,
    INCOMPLETE,
    LIVING,
    MEMBER,
    RANK,
    RUN,
    WAITING,
    WAITING_SHARE,
    lasting,
    recorded,
)
from rankwatch_alerts.rules import RecordingRule

ALL_WAIT = "run:rankwatch_stall_all_waiting:count"
COMPLETED = "rank_group:rankwatch_collective_last_completed:stalled"
SIGNATURE = "rank_group:rankwatch_collective_oldest_incomplete_signature:stalled"
OUT_OF_LINE = "rank_group:rankwatch_collectives_out_of_line:bool"
DESYNC = "run:rankwatch_collectives_desynchronised:bool"
_RECORDER = '{source="flight_recorder"}'


def stall_desync_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Who is out of line, and which runs are for it."""
    return (
        *_signature_rules(config),
        _out_of_line_rule(config),
        recorded(
            DESYNC,
            f"""
            group by ({RUN}) ({OUT_OF_LINE})
            or
            group by ({RUN}) (max by ({GROUP}) ({SIGNATURE}) != min by ({GROUP}) ({SIGNATURE}))
            """,
        ),
    )


def _signature_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What each rank calls at the place at which most of its group stand, where every rank waits."""
    return (
        recorded(
            ALL_WAIT,
            f"""
            (count by ({RUN}) {lasting(WAITING, config)} == count by ({RUN}) ({LIVING}))
            unless on ({RUN})
            {MISSING}
            """,
        ),
        recorded(
            COMPLETED,
            f"""
            max by ({MEMBER}) (
              rankwatch_collective_last_completed{_RECORDER}
              and on ({RANK}) {LIVING}
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


def _out_of_line_rule(config: RuleConfig) -> RecordingRule:
    """Another operation at the same place; or else another number, where all ranks started together.

    A rank that restarted alone counts afresh: the numbers then say nothing. Nor do they where the hooks of
    one rank began later than those of its peers, and PyTorch's own numbers are equal.
    """
    own = f"(rankwatch_collective_last_enqueued{_RECORDER} and on ({RANK}) {LIVING})"
    starts = f"rankwatch_rank_start_timestamp_seconds and on ({RANK}) {LIVING}"
    return recorded(
        OUT_OF_LINE,
        f"""
            label_replace({_minority(SIGNATURE, INCOMPLETE)},
              "reason", "operation", "", ""
            )
            or on ({RUN})
            label_replace({_elsewhere()}
              unless on ({GROUP}) (stddev by ({GROUP}) {own} == 0)
              and on ({RUN}) {ALL_WAIT}
              and on ({RUN})
              (
                max by ({RUN}) ({starts})
                - run:rankwatch_rank_start_timestamp_seconds:min
                < {config.stall_fallback_seconds:g}
              ),
              "reason", "number", "", ""
            )
            """,
    )


def _elsewhere() -> str:
    """Ranks that have not come where most members of a group wait, and wait where most members do not.

    To be behind alone accuses victims: who waits for the culprit in a small group is behind in the large one.
    And where hosts run ahead of their devices, each is ahead as far as it happens to be.
    """
    return f"""
              group by ({MEMBER}) ({BEHIND})
              and on ({GROUP}) ({WAITING_SHARE} > 0.5)
              unless on ({RANK}) ({INCOMPLETE} unless on ({GROUP}) ({WAITING_SHARE} < 0.5))"""


def _minority(series: str, among: str) -> str:
    """Ranks that differ from what most of their group have, of those that have `among`.

    The median of values of which most are the same is that value.
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
