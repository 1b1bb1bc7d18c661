"""Which checkpoint is complete, how much work could be lost, and which rank writes slowly.

A checkpoint is complete once every rank that saves has saved it. A rank that saves for the first time and is
not done yet has saved none. Where one rank writes common metadata when all others are done, its save decides.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.steps import NOT_ENDED
from rankwatch_alerts.rules import RANK, RUN, RecordingRule, duration, recorded

COMPLETE_STEP = "run:rankwatch_checkpoint_complete_step:max"
COMPLETE = "run:rankwatch_checkpoint_complete_timestamp_seconds:max"
GOOD = "run:rankwatch_checkpoint_good_timestamp_seconds:max"
AT_RISK = "run:rankwatch_work_at_risk_seconds:sum"
WRITE_MEDIAN = "run:rankwatch_checkpoint_write_seconds:median"
WRITE_SKEW = "rank:rankwatch_checkpoint_write_skew_seconds:max"

_RANKS_RUNNING = "run:rankwatch_ranks_running:sum"
_WRITES = f"max by ({RANK}) (rankwatch_checkpoint_last_write_seconds {NOT_ENDED})"
_ALL_WRITES = f"(rankwatch_half_checkpoint_last_write_seconds or on ({RUN}) {_WRITES})"
"""In large runs, the halves of the ranks of a node speak for all of them."""


def checkpoint_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """All of them; they read which ranks run, and when the run last made progress."""
    return (
        _complete_rule(config, COMPLETE_STEP, "step"),
        _complete_rule(config, COMPLETE, "timestamp_seconds"),
        _good_rule(config),
        *_age_rules(config),
        *_work_rules(),
        recorded(
            WRITE_MEDIAN,
            f"""
                quantile by ({RUN}) (0.5, {_ALL_WRITES})
                and on ({RUN})
                count by ({RUN}) (rankwatch_checkpoint_last_write_seconds) >= {config.checkpoint_writers}
            """,
        ),
        recorded(WRITE_SKEW, f"topk by ({RUN}) (1, {_WRITES}) - on ({RUN}) group_left () {WRITE_MEDIAN}"),
    )


def _complete_rule(config: RuleConfig, record: str, what: str) -> RecordingRule:
    saved, committed = (f"rankwatch_node_checkpoint_{each}_{what}" for each in ("saved", "committed"))
    memory = duration(config.absence_lookback_seconds)
    # An agent that restarts forgets, and so does a rank that moves to another node: the series remembers.
    return recorded(
        record,
        f"""
            max by ({RUN}) (
              min by ({RUN}) ({saved}) >= 0
              or
              label_replace(max by ({RUN}) ({committed}), "of", "committed", "", "")
            )
            or
            last_over_time({record}[{memory}]) and on ({RUN}) {_RANKS_RUNNING}
        """,
    )


def _good_rule(config: RuleConfig) -> RecordingRule:
    """A complete one counts as good until an agent finds it damaged; then the newest verified one does.

    What an agent verifies is what rank 0 has noted: it says nothing of ranks that have not finished yet.
    """
    # The series ends when somebody removes the checkpoint, which makes it no better.
    damaged = f"last_over_time(rankwatch_checkpoint_damaged_step[{duration(config.node_memory_seconds)}])"
    verified = f"max by ({RUN}) (rankwatch_checkpoint_verified_step)"
    return recorded(
        GOOD,
        f"""
            (
              {COMPLETE}
              unless on ({RUN})
              ({damaged} == on ({RUN}) group_left () {COMPLETE_STEP})
            )
            or
            (
              max by ({RUN}) (rankwatch_checkpoint_verified_timestamp_seconds)
              and on ({RUN})
              ({verified} <= on ({RUN}) {COMPLETE_STEP})
            )
        """,
    )


def _age_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    return (
        recorded(
            "run:rankwatch_checkpoint_last_good_timestamp_seconds:max",
            # The earliest start within the lookback: a run that restarts all the time saves nothing either.
            # A run that declares no interval may never want to save.
            f"""
                max by ({RUN}) (rankwatch_checkpoint_last_verified_timestamp_seconds)
                or
                {GOOD}
                or
                min by ({RUN}) (
                  min_over_time(rankwatch_node_first_start_timestamp_seconds[{duration(config.absence_lookback_seconds)}])
                )
                and on ({RUN})
                rankwatch_run_checkpoint_interval_seconds
            """,
        ),
        recorded(
            "run:rankwatch_checkpoint_age_budget_seconds:max",
            f"""
                {config.checkpoint_declared_intervals:g}
                * max by ({RUN}) (rankwatch_run_checkpoint_interval_seconds)
                or
                0 * {_RANKS_RUNNING} + {config.checkpoint_age_budget_seconds:g}
            """,
        ),
    )


def _work_rules() -> tuple[RecordingRule, ...]:
    """Work since the later of both: what was done before the attempt, and not saved, is lost already."""
    return (
        recorded(
            AT_RISK,
            f"""
                clamp_min(
                  run:rankwatch_progress_timestamp_seconds:max
                  - on ({RUN})
                  max by ({RUN}) (
                    {GOOD}
                    or
                    label_replace(run:rankwatch_rank_start_timestamp_seconds:min, "of", "start", "", "")
                  ),
                  0
                )
                * on ({RUN})
                ({_RANKS_RUNNING} > 0)
            """,
        ),
        recorded(
            "run:rankwatch_gpu_work_at_risk_seconds:sum",
            f"""
                {AT_RISK}
                / on ({RUN})
                {_RANKS_RUNNING}
                * on ({RUN})
                (sum by ({RUN}) (max by ({RUN}, node) (rankwatch_node_gpus)) > 0)
            """,
        ),
    )
