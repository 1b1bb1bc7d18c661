"""How runs end, how far they are, and when they will be done."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.nodes import LOST
from rankwatch_alerts.rules import RUN, RecordingRule, duration, recorded

FAILED = "run:rankwatch_run_failed_timestamp_seconds:max"
HIGHEST_STEP = "run:rankwatch_step:max"
PACE = "run:rankwatch_step:deriv"
FIRST_STEP = "run:rankwatch_run_time_to_first_step_seconds:max"
STARTUP = "run:rankwatch_startup_seconds:max"
STARTED = f"max by ({RUN}) (rankwatch_run_attempt_start_timestamp_seconds)"
TIME_TO_COMPLETE = "run:rankwatch_time_to_complete_seconds:estimate"
DEADLINE_MARGIN = "run:rankwatch_deadline_margin_seconds:estimate"
NODES_LOST = "run:rankwatch_node_lost_timestamp_seconds:min"

_ROOT = f"{RUN}, node, rank, kind, exception"
_END = "rankwatch_run_attempt_end_timestamp_seconds"
_SAME_ATTEMPT_SECONDS = 120.0
"""Nodes see the end of one attempt within this time, and attempts that fail last longer."""


def life_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """Ends and progress of each run."""
    return (
        _failed_rule(),
        *_progress_rules(config),
        *_startup_rules(),
        _nodes_lost_rule(config),
    )


def _failed_rule() -> RecordingRule:
    """The root cause where a node has it, else a victim. An agent keeps the end of an earlier attempt on its
    node, so only the newest ends count."""
    newest = f"""
        max by ({_ROOT}) ({_END}{{outcome="failed"}})
        > on ({RUN}) group_left ()
        max by ({RUN}) ({_END}) - {_SAME_ATTEMPT_SECONDS:g}
    """
    root = f"""
        max by ({_ROOT}) ({_END}{{outcome="failed", kind!="collective"}})
        > on ({RUN}) group_left ()
        max by ({RUN}) ({_END}) - {_SAME_ATTEMPT_SECONDS:g}
    """
    return recorded(
        FAILED,
        f"""
        (
          ({root.strip()})
          or
          ({newest.strip()} unless on ({RUN}) ({root.strip()}))
        )
        unless on ({RUN})
        run:rankwatch_ranks_running:sum > 0
        """,
    )


def _progress_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """A restart takes the run back to its checkpoint: steps that it repeats are no progress."""
    lookback, window = duration(config.absence_lookback_seconds), duration(config.pace_window_seconds)
    return (
        recorded(
            HIGHEST_STEP,
            # The higher of both; the label `of` keeps them apart.
            f"""
                max by ({RUN}) (
                  max by ({RUN}) (rankwatch_node_step)
                  or
                  label_replace(last_over_time({HIGHEST_STEP}[{lookback}]), "of", "before", "", "")
                )
                and on ({RUN})
                rankwatch_run_attempt
            """,
        ),
        recorded(PACE, f"deriv({HIGHEST_STEP}[{window}])"),
        recorded(
            TIME_TO_COMPLETE,
            f"""
                clamp_min(max by ({RUN}) (rankwatch_node_target_steps) - 1 - {HIGHEST_STEP}, 0)
                / on ({RUN})
                ({PACE} > 0)
                and on ({RUN})
                run:rankwatch_ranks_running:sum > 0
            """,
        ),
        recorded(
            DEADLINE_MARGIN,
            f"""
                max by ({RUN}) (rankwatch_run_deadline_timestamp_seconds)
                - on ({RUN})
                (time() + {TIME_TO_COMPLETE})
            """,
        ),
    )


def _startup_rules() -> tuple[RecordingRule, ...]:
    """Of an attempt that goes on. A first step counts for all nodes: none takes it alone."""
    going_on = f"and on ({RUN}) run:rankwatch_ranks_running:sum > 0"
    return (
        recorded(
            FIRST_STEP,
            f"max by ({RUN}) (rankwatch_run_time_to_first_step_seconds) {going_on}",
        ),
        recorded(STARTUP, f"{FIRST_STEP} or (time() - {STARTED} {going_on})"),
    )


def _nodes_lost_rule(config: RuleConfig) -> RecordingRule:
    """Nobody on a lost node can count the attempt that it has ended. One value for each attempt, however many
    nodes it has lost. The class is remembered, because a run that was on this node only is not seen any more.
    A machine that the cloud had announced to take away has not failed.
    """
    lookback, memory = duration(config.absence_lookback_seconds), duration(config.node_memory_seconds)
    of_class = f"group by ({RUN}, run_class) (last_over_time(rankwatch_run_info[{lookback}]))"
    return recorded(
        NODES_LOST,
        f"""
            min by ({RUN}) (
              {LOST}
              unless on (cluster, node)
              last_over_time(rankwatch_preemption_notice_timestamp_seconds[{memory}])
            )
            * on ({RUN}) group_right ()
            topk by ({RUN}) (1,
              last_over_time({NODES_LOST}[{lookback}]) ^ 0
              or on ({RUN})
              {of_class}
            )
        """,
    )
