"""Whom a stalled run waits for: the ranks it misses, or else those that are silent.

Where all ranks wait in the same collective, one more thing can tell them apart: the flight recorder, which
is served while Python hangs. Where a rank's answers no more and most others do, its whole process is stopped.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.duration import duration
from rankwatch_alerts.recording.stall_desync import ALL_WAIT, DESYNC, stall_desync_rules
from rankwatch_alerts.recording.stall_missing import MISSING, stall_missing_rules
from rankwatch_alerts.recording.stall_places import LIVING, RANK, RUN, recorded, stall_place_rules
from rankwatch_alerts.rules import RecordingRule

SILENT = "rank:rankwatch_stall_silent:bool"
CULPRIT = "rank:rankwatch_stall_culprit:bool"
_PULLS = "rankwatch_flight_recorder_pulls_total"
EVER_ASKED = frozenset({_PULLS})
"""Counters of which a rule here asks whether they ever moved, however long ago."""


def stall_culprit_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From the stall to the ranks it waits for. The rules build on each other and on those of progress."""
    return (
        *stall_place_rules(config),
        *stall_missing_rules(config),
        *stall_desync_rules(config),
        *_culprit_rules(config),
    )


def _culprit_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The missing ranks; or else the silent ones, if they ever answered and more ranks still do."""
    window = duration(config.stall_floor_seconds)
    answers = f'(increase({_PULLS}{{outcome="success"}}[{window}]) > 0)'
    return (
        recorded(
            SILENT,
            f"""
            {LIVING}
            and on ({RANK}) (increase({_PULLS}{{outcome="failure"}}[{window}]) > 0)
            and on ({RANK}) ({_PULLS}{{outcome="success"}} > 0)
            unless on ({RANK}) {answers}
            """,
        ),
        recorded(
            CULPRIT,
            f"""
            {MISSING}
            or on ({RUN})
            label_replace(
              {SILENT}
              and on ({RUN}) {ALL_WAIT}
              and on ({RUN})
              (count by ({RUN}) ({SILENT}) < count by ({RUN}) ({LIVING} and on ({RANK}) {answers}))
              unless on ({RUN}) {DESYNC},
              "reason", "silent", "", ""
            )
            """,
        ),
    )
