"""Where each living rank of a stalled run stands in its process groups, and whether it waits.

All series exist only while a run makes no progress for longer than its timeout. Ranks scraped at different
moments can be compared where some have waited long since.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.promql import ENDED, RUNNING, promql
from rankwatch_alerts.rules import RecordingRule

RUN = "cluster, run"
RANK = "cluster, run, rank, node"
GROUP = "cluster, run, group, members"
MEMBER = "cluster, run, rank, node, group, members"

STALL = "run:rankwatch_stall_seconds:max"
LIVING = "rank:rankwatch_stall_living:bool"
ENQUEUED = "rank_group:rankwatch_collective_last_enqueued:stalled"
INCOMPLETE = "rank_group:rankwatch_collective_oldest_incomplete_timestamp_seconds:stalled"
WAITING = "rank:rankwatch_stall_waiting_timestamp_seconds:min"
WAITED = "rank:rankwatch_stall_waited:bool"
WAITING_SHARE = "group:rankwatch_stall_waiting:share"

_SAME_SECONDS = 1.0
"""Two readings of one moment differ by less, also while the clock of the node is being corrected."""


def stall_place_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The stall, the ranks that live in it, and their places. The rules build on each other."""
    return (
        recorded(
            STALL,
            # A clock that is wrong makes progress look old; but what is older than the floor is no new one.
            # The agent tells the same moment anew at each scrape, a little earlier or later.
            f"""
            time() - run:rankwatch_progress_timestamp_seconds:max
            > run:rankwatch_progress_timeout_seconds:max
            and
            run:rankwatch_ranks_running:sum > 0
            unless
            run:rankwatch_progress_timestamp_seconds:max
            > run:rankwatch_progress_timestamp_seconds:max offset {duration(config.stall_floor_seconds)}
            + {_SAME_SECONDS:g}
            """,
        ),
        # A rank restarted on another node left its last words on the old one: only living ones count.
        recorded(
            LIVING,
            f"group by ({RANK}) (rankwatch_rank_state{{{RUNNING}}} == 1 and on ({RUN}) {STALL})",
        ),
        *_place_rules(),
        recorded(WAITING, f"min by ({RANK}) ({INCOMPLETE})"),
        # A watchdog, or a person, ends ranks that wait for long: it is not for them that the run stands.
        recorded(
            WAITED,
            f"""
            group by ({RANK}) {lasting(WAITING, config)}
            or
            ({WAITED} and on ({RANK}) (rankwatch_rank_state{{{ENDED}}} == 1))
            """,
        ),
        recorded(
            WAITING_SHARE,
            f"""
            count by ({GROUP}) ({INCOMPLETE})
            / on ({GROUP})
            count by ({GROUP}) ({ENQUEUED})
            """,
        ),
    )


def lasting(since: str, config: RuleConfig) -> str:
    """Of series since when ranks wait: those so old that whoever has not come yet is not merely on its way.

    A run may go on long without an end of a step: an evaluation without a phase of its own, steps that became
    much slower, the first step after a stall. Its collectives then come and go, ranks are read at different
    moments, and one read earlier looks behind.
    """
    return f"({since} < time() - {config.stall_for_seconds:g})"


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
