"""Where each living rank of a stalled run stands in its process groups, and whether it waits.

All series exist only while a run stands still for longer than its timeout: then nothing moves, and
ranks scraped at different moments can be compared.
"""

from __future__ import annotations

from rankwatch_alerts.promql import RUNNING, promql
from rankwatch_alerts.rules import RecordingRule

RUN = "cluster, run"
RANK = "cluster, run, rank, node"
GROUP = "cluster, run, group, members"
MEMBER = "cluster, run, rank, node, group, members"

STALL = "run:rankwatch_stall_seconds:max"
LIVING = "rank:rankwatch_stall_living:bool"
ENQUEUED = "rank_group:rankwatch_collective_last_enqueued:stalled"
INCOMPLETE = "rank_group:rankwatch_collective_oldest_incomplete_timestamp_seconds:stalled"
WAITING = "rank:rankwatch_stall_waiting:count"


def stall_place_rules() -> tuple[RecordingRule, ...]:
    """The stall, the ranks that live in it, and their places. The rules build on each other."""
    return (
        recorded(
            STALL,
            """
            time() - run:rankwatch_progress_timestamp_seconds:max
            > run:rankwatch_progress_timeout_seconds:max
            and
            run:rankwatch_ranks_running:sum > 0
            """,
        ),
        # A rank restarted on another node left its last words on the old one: only living ones count.
        recorded(
            LIVING,
            f"group by ({RANK}) (rankwatch_rank_state{{{RUNNING}}} == 1 and on ({RUN}) {STALL})",
        ),
        *_place_rules(),
        recorded(WAITING, f"count by ({RANK}) ({INCOMPLETE})"),
    )


def recorded(record: str, expression: str) -> RecordingRule:
    """A recording rule from indented text."""
    return RecordingRule(record=record, expression=promql(expression))


def _place_rules() -> tuple[RecordingRule, ...]:
    """Where each living rank of a stalled run stands in each of its groups.

    Living ranks come first in each expression: without a stall there are none, and nothing is left to join.
    The black box tells it at once, the flight recorder only when it was asked last: that one is
    taken where the black box cannot know. Numbers of one group come from one source.
    """
    enqueued = "rankwatch_collective_last_enqueued"
    oldest = "rankwatch_collective_oldest_incomplete_timestamp_seconds"
    return (
        recorded(
            ENQUEUED,
            f"""
            max by ({MEMBER}) (
              ({enqueued}{{source="black_box"}} and on ({RANK}) {LIVING})
              or
              (
                ({enqueued}{{source="flight_recorder"}} and on ({RANK}) {LIVING})
                unless on ({GROUP})
                {enqueued}{{source="black_box"}}
              )
            )
            """,
        ),
        # What was enqueued long before the last step comes from a recorder that could not be asked since.
        recorded(
            INCOMPLETE,
            f"""
            min by ({MEMBER}) (
              (
                ({oldest}{{source="black_box"}} and on ({RANK}) {LIVING})
                or
                (
                  ({oldest}{{source="flight_recorder"}} and on ({RANK}) {LIVING})
                  unless on ({MEMBER})
                  rankwatch_collective_last_completed{{source="black_box"}}
                )
              )
              > on ({RUN}) group_left ()
              (
                run:rankwatch_progress_timestamp_seconds:max
                - run:rankwatch_progress_timeout_seconds:max
              )
            )
            """,
        ),
    )
