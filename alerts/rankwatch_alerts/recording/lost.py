"""Ranks whose process ended without reporting an end."""

from __future__ import annotations

from rankwatch_alerts.recording.nodes import RUNNING_RANKS
from rankwatch_alerts.recording.stall_places import WAITED
from rankwatch_alerts.rules import RANK, RUN, RecordingRule, recorded

LOST = "rank:rankwatch_rank_lost:waited_seconds"


def lost_rules() -> tuple[RecordingRule, ...]:
    """How long each lost rank had waited for others when it ended; 0 for a rank that did not wait.

    Silent once the rank runs again, here or on another node, and once all running ranks started after its
    end: else what an agent keeps of an earlier attempt would hold back the stalls of the present one.
    """
    return (
        recorded(
            LOST,
            f"""
                (
                  {WAITED}
                  and on ({RANK})
                  (rankwatch_rank_state{{state="lost"}} == 1)
                  or
                  0 * max by ({RANK}) (rankwatch_rank_state{{state="lost"}})
                )
                unless on (cluster, run, rank)
                {RUNNING_RANKS}
                unless on ({RANK})
                (
                  max by ({RANK}) (rankwatch_rank_end_timestamp_seconds)
                  < on ({RUN}) group_left ()
                  run:rankwatch_rank_start_timestamp_seconds:min
                )
            """,
        ),
    )
