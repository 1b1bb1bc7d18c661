"""Ranks that a stalled run misses: others wait for them while they wait for nobody.

In the order in which they are believed:

- *gone*: the rank lived when its peers had started, and is not there any more, while peers wait.
- *awaited*: in some process group others have enqueued a collective that it has not, and it waits
  for nobody itself. A victim of another group's hang is awaited too, but waits there.
- *outside*: it waits in no collective while most ranks do.

What a wait says against others it says only once it has lasted; that a rank waits clears it at once.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.recording.stall_places import (
    ENQUEUED,
    GROUP,
    INCOMPLETE,
    LIVING,
    RANK,
    RUN,
    WAITED,
    WAITING,
    lasting,
    recorded,
)
from rankwatch_alerts.rules import RecordingRule

BEHIND = "rank_group:rankwatch_collectives_behind:stalled"
GONE = "rank:rankwatch_stall_gone:bool"
OUTSIDE = "rank:rankwatch_stall_outside:bool"
MISSING = "rank:rankwatch_stall_missing:bool"


def stall_missing_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Gone before awaited before outside; gone and outside only where more ranks wait than are blamed."""
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
        _gone_rule(config),
        _outside_rule(config),
        recorded(
            MISSING,
            f"""
            label_replace(
              {GONE}
              and on ({RUN})
              (count by ({RUN}) ({GONE}) {fewer_than_wait}),
              "reason", "gone", "", ""
            )
            or on ({RUN})
            label_replace(
              group by ({RANK}) ({BEHIND}) and {OUTSIDE},
              "reason", "awaited", "", ""
            )
            or on ({RUN})
            label_replace(
              {OUTSIDE}
              and on ({RUN})
              (count by ({RUN}) ({OUTSIDE}) {fewer_than_wait}),
              "reason", "outside", "", ""
            )
            """,
        ),
    )


def _outside_rule(config: RuleConfig) -> RecordingRule:
    """What calls collectives all the while is slow at most: where it stands is chance."""
    before = f"{ENQUEUED} offset {duration(config.stall_for_seconds)}"
    return recorded(
        OUTSIDE,
        f"""
        {LIVING}
        unless on (cluster, run, rank)
        {WAITING}
        unless on ({RANK})
        ({ENQUEUED} != {before})
        """,
    )


def _gone_rule(config: RuleConfig) -> RecordingRule:
    """Ended ranks at once, unless they waited before; ranks without telemetry after the window of absence.

    Ranks of an earlier, larger world were silent before the present ones started: nobody misses them.
    """
    memory, window = duration(config.absence_memory_seconds), duration(config.absence_window_seconds)
    running = "rank:rankwatch_rank_running:bool"
    return recorded(
        GONE,
        f"""
        group by ({RANK}) (
          last_over_time(rankwatch_rank_heartbeat_timestamp_seconds[{memory}])
          > on ({RUN}) group_left ()
          max by ({RUN}) (rankwatch_rank_start_timestamp_seconds and on ({RANK}) {LIVING})
        )
        unless on (cluster, run, rank)
        ({running} == 1)
        unless on (cluster, run, rank)
        (present_over_time({running}[{window}]) unless {running})
        unless on ({RANK})
        {WAITED}
        and on ({RUN})
        {lasting(WAITING, config)}
        """,
    )
