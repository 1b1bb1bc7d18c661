"""Where each live rank of a stalled run stands in its process groups, and whether it waits.

All series exist only while a run makes no progress for longer than its timeout. Ranks that were scraped at
different moments are comparable once some of them have waited for long.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.nodes import RUNNING_RANKS
from rankwatch_alerts.recording.steps import STALL
from rankwatch_alerts.rules import ENDED, GROUP, MEMBER, RANK, RUN, RecordingRule, duration, recorded

ALIVE = "rank:rankwatch_stall_alive:bool"
ENQUEUED = "rank_group:rankwatch_collective_last_enqueued:stalled"
INCOMPLETE = "rank_group:rankwatch_collective_oldest_incomplete_timestamp_seconds:stalled"
WAITING = "rank:rankwatch_stall_waiting_timestamp_seconds:min"
WAITED = "rank:rankwatch_stall_waited:seconds"
WAITING_SHARE = "group:rankwatch_stall_waiting:share"


def stall_place_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The ranks alive in a stall, and their places. The rules build on each other."""
    return (
        recorded(ALIVE, f"group by ({RANK}) ({RUNNING_RANKS} and on ({RUN}) {STALL})"),
        *_place_rules(),
        recorded(WAITING, f"min by ({RANK}) ({INCOMPLETE})"),
        _waited_rule(config),
        recorded(
            WAITING_SHARE,
            f"""
            count by ({GROUP}) ({INCOMPLETE})
            / on ({GROUP})
            count by ({GROUP}) ({ENQUEUED})
            """,
        ),
    )


def _waited_rule(config: RuleConfig) -> RecordingRule:
    """How long a rank has waited, or had when it ended, by a watchdog or a person. No run waits for it.

    Once Prometheus has been down for long, the last value before that is taken up again.
    """
    return recorded(
        WAITED,
        f"""
            time() - {lasting(WAITING, config)}
            or
            (
              (
                {WAITED}
                or
                last_over_time({WAITED}[{duration(config.memory_seconds)}])
                unless on ({RUN})
                run:rankwatch_ranks_running:sum offset {duration(config.scrape_interval_seconds)}
              )
              and on ({RANK})
              (rankwatch_rank_state{{{ENDED}}} == 1)
            )
        """,
    )


def lasting(since: str, config: RuleConfig) -> str:
    """Of the times since which ranks wait: those old enough that the missing rank is not merely on its way.

    A run may go on for long without the end of a step: an evaluation without a phase of its own, steps that
    became much slower, the first step after a stall. Its collectives then come and go, ranks are read at
    different moments, and a rank that was read earlier looks behind.
    """
    return f"({since} < time() - {config.stall_for_seconds:g})"


def _place_rules() -> tuple[RecordingRule, ...]:
    """Where each live rank of a stalled run stands in each of its groups.

    Live ranks come first in each expression: without a stall there are none, and nothing is left to join.
    The black box is up to date, the flight recorder only as of its last pull: it is used where the black box
    cannot know. Numbers of one group come from one source.
    """
    enqueued = "rankwatch_collective_last_enqueued"
    oldest = "rankwatch_collective_oldest_incomplete_timestamp_seconds"
    return (
        recorded(
            ENQUEUED,
            f"""
            max by ({MEMBER}) (
              ({enqueued}{{source="black_box"}} and on ({RANK}) {ALIVE})
              or
              (
                ({enqueued}{{source="flight_recorder"}} and on ({RANK}) {ALIVE})
                unless on ({GROUP})
                {enqueued}{{source="black_box"}}
              )
            )
            """,
        ),
        # An entry from long before the last step comes from a recorder that has not answered since.
        recorded(
            INCOMPLETE,
            f"""
            min by ({MEMBER}) (
              (
                ({oldest}{{source="black_box"}} and on ({RANK}) {ALIVE})
                or
                (
                  ({oldest}{{source="flight_recorder"}} and on ({RANK}) {ALIVE})
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
