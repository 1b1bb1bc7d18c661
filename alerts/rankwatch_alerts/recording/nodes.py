"""Which nodes of a run have vanished, and which ranks were there.

A node that vanishes takes its series with it, so the rules remember where ranks ran. Prometheus forgets what
is stale, so each memory is a series that reads its own past. Only nodes and the ranks of silent nodes are
remembered, not every rank.

- *seen*: when ranks of the run were last seen running on the node; 0 once they run there no more.
- *silent*: a node of which nothing has been seen for several scrapes. It was last seen before the run stood
  still, or after another node was lost: an agent that is restarted during a stall has not caused it.
- *lost*: a silent node whose run stands still. If the other ranks make progress, the silent ones do too, and
  only their telemetry is missing.
"""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.steps import STALL
from rankwatch_alerts.rules import ENDED, RANK, RUN, RUNNING, RecordingRule, duration, recorded

NODE = f"{RUN}, node"
"""The ranks of one run on one node."""

SEEN = "run_node:rankwatch_ranks_seen_timestamp_seconds:max"
SILENT = "run_node:rankwatch_ranks_silent_timestamp_seconds:max"
SILENT_RANKS = "rank:rankwatch_rank_silent_step:last"
LOST = "run_node:rankwatch_ranks_lost_timestamp_seconds:max"
MANY_LOST = "run:rankwatch_nodes_lost:count"
CHECKPOINT_STEP = "run:rankwatch_checkpoint_last_good_step:max"

RUNNING_RANKS = "rank:rankwatch_rank_running:bool"
"""Only of runs of which it matters: most have no rank that ended, is silent or waits."""

_RANKS_RUNNING = "run:rankwatch_ranks_running:sum"
_FIRST_START = "run:rankwatch_rank_start_timestamp_seconds:min"


def seen_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The nodes of a run, the silent ones of them, and the ranks that run beside what is amiss."""
    return (
        _seen_rule(config),
        _silent_rule(config),
        recorded(
            RUNNING_RANKS,
            # A rank leaves its final state on a node where it ran before: it runs if it does anywhere.
            f"""
            group by ({RANK}) (
              rankwatch_rank_state{{{RUNNING}}}
              and on ({RUN})
              (rankwatch_node_ranks{{{ENDED}}} or {SILENT} or {STALL})
            )
            """,
        ),
    )


def node_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """From the silent nodes of a run to those that are lost. The rules build on each other."""
    return (
        _silent_ranks_rule(config),
        recorded(
            CHECKPOINT_STEP,
            f"""
            max by ({RUN}) (rankwatch_checkpoint_last_good_step)
            or
            ({_last(CHECKPOINT_STEP, config)} and on ({RUN}) {SILENT})
            """,
        ),
        _lost_rule(config),
        recorded(
            MANY_LOST,
            f"""
            (count by ({RUN}) ({LOST}) > {config.node_lost_most_named:g})
            or
            (
              (count by ({RUN}) ({LOST}) > 1)
              > on ({RUN})
              0.5 * count by ({RUN}) ({SEEN})
            )
            """,
        ),
    )


def _last(series: str, config: RuleConfig) -> str:
    """The last value of a recorded series, also after Prometheus itself was away for minutes."""
    return f"last_over_time({series}[{duration(config.absence_lookback_seconds)}])"


def _seen_rule(config: RuleConfig) -> RecordingRule:
    """Ranks have left a node if they ended there, if the run was started anew without it, or if it is over.

    A run is over once none of its ranks runs, and none is left that failed or was killed: until then the node
    is what ended it.
    """
    seen = f"({_last(SEEN, config)} > time() - {config.node_memory_seconds:g})"
    return recorded(
        SEEN,
        f"""
        max by ({NODE}) (timestamp(rankwatch_node_ranks{{{RUNNING}}}))
        or
        0 * group by ({NODE}) (rankwatch_node_ranks{{{ENDED}}})
        or
        0 * (
          {seen}
          < on ({RUN}) group_left ()
          (
            {_FIRST_START}
            or
            (
              time() + ({_last(_RANKS_RUNNING, config)} == 0)
              unless on ({RUN})
              rankwatch_node_ranks{{state=~"failed|lost"}}
            )
          )
        )
        or
        {seen}
        """,
    )


def _silent_rule(config: RuleConfig) -> RecordingRule:
    """The same silence has the same value, so a node that came back meanwhile is judged anew."""
    silent = duration(config.node_silent_seconds)
    return recorded(
        SILENT,
        f"""
        (
          ({SEEN} > 0) < time() - {config.node_silent_seconds:g}
          unless on ({RUN})
          ({STALL} offset {silent} unless on ({RUN}) {LOST})
        )
        or
        ({_last(SILENT, config)} == {SEEN})
        """,
    )


def _silent_ranks_rule(config: RuleConfig) -> RecordingRule:
    """The ranks that ran there until the end, unless they run elsewhere by now, with the node's last step."""
    window = duration(config.absence_window_seconds)
    return recorded(
        SILENT_RANKS,
        f"""
        (
          group by ({RANK}) (
            last_over_time(rankwatch_rank_state{{{RUNNING}}}[{window}]) and on ({NODE}) {SILENT}
          )
          * on ({NODE}) group_left ()
          (max by ({NODE}) (last_over_time(rankwatch_node_step[{window}])) or on ({NODE}) 0 * {SILENT})
          or
          {_last(SILENT_RANKS, config)}
        )
        and on ({NODE})
        {SILENT}
        unless on ({RUN}, rank)
        {RUNNING_RANKS}
        """,
    )


def _lost_rule(config: RuleConfig) -> RecordingRule:
    """Where no rank of the run is seen at all, nobody can say that it stands still, and silence must last.
    That of Prometheus itself, which has just started again, is none: it must have looked a while ago.

    A lost node stays lost until the run moves again, also after its other ranks were aborted.
    """
    silent = duration(config.node_silent_seconds)
    return recorded(
        LOST,
        f"""
        (
          ({SILENT} and on ({RUN}) {STALL})
          or
          (
            ({SILENT} < time() - {config.absence_window_seconds:g})
            unless on ({RUN})
            {_RANKS_RUNNING}
            unless on (cluster, node)
            present_over_time(rankwatch_agent_info[{duration(config.absence_window_seconds)}])
            and on ({NODE})
            present_over_time({SEEN}[{silent}] offset {silent})
          )
          or
          (
            ({_last(LOST, config)} == {SILENT})
            unless on ({RUN})
            ({_RANKS_RUNNING} > 0 unless on ({RUN}) {STALL})
          )
        )
        and on ({NODE})
        {SILENT_RANKS}
        """,
    )
