"""Goodput of a run: sums of rank-seconds first, the division last, so that nodes and world sizes weigh right.

Scheduling goodput is the part of the requested time in which ranks had a process, runtime goodput the part of
that in which they made progress that lasts. Their product is the effective training time ratio (ETTR) of
"Revisiting Reliability in Large-Scale Machine Learning Research Clusters" (arXiv 2410.21680).
"""

from __future__ import annotations

from rankwatch.conventions.goodput import GoodputState
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RUN, RecordingRule, duration, recorded

RANKS_BY_STATE_NOW = "run_state:rankwatch_goodput_ranks:rate"
RANKS_BY_STATE = "run_state:rankwatch_goodput_ranks:mean"
REQUESTED = "run:rankwatch_goodput_requested_ranks:mean"
ALLOCATED = "run:rankwatch_goodput_allocated_ranks:mean"
_SAVES = "run:rankwatch_checkpoint_saves:rate"
_BLOCKING = "run:rankwatch_checkpoint_save_blocking:rate"
_SAVING = "run:rankwatch_checkpoint_save:rate"
SAVE_NOW = "run:rankwatch_checkpoint_save_seconds:recent"
SAVE_BEFORE = "run:rankwatch_checkpoint_save_seconds:past"
BLOCKED_SHARE = "run:rankwatch_checkpoint_blocking:share"
_BLOCKED_SECONDS = "run:rankwatch_checkpoint_blocking_seconds:mean"
_INTERVAL = "run:rankwatch_checkpoint_interval_seconds:mean"
_INTERRUPTIONS = "run:rankwatch_interruptions:count"
_FAILURE_INTERVAL = "run:rankwatch_failure_interval_seconds:mean"
ADVICE = "run:rankwatch_checkpoint_interval_advice_seconds:best"
GAIN = "run:rankwatch_checkpoint_interval_advice:gain"
_LEAST_INTERRUPTIONS = 2
"""Of one interruption nobody knows whether it was the only one in years."""


def goodput_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The ratios, and the time by state that they are made of."""
    window = duration(config.goodput_window_seconds)
    lately = config.slo_interval_seconds + config.scrape_interval_seconds
    productive = f'{RANKS_BY_STATE}{{state="{GoodputState.PRODUCTIVE}"}}'
    return (
        recorded(
            RANKS_BY_STATE_NOW,
            # Each node has a counter for each state: an hour of them is read once, and remembered by run.
            f"sum by ({RUN}, state) (rate(rankwatch_goodput_seconds_total[{duration(lately)}]))",
        ),
        recorded(RANKS_BY_STATE, f"avg_over_time({RANKS_BY_STATE_NOW}[{window}])"),
        recorded(REQUESTED, f"sum by ({RUN}) ({RANKS_BY_STATE}) > 0"),
        recorded(ALLOCATED, f'sum by ({RUN}) ({RANKS_BY_STATE}{{state!="{GoodputState.DOWN}"}})'),
        recorded("run:rankwatch_goodput_scheduling:ratio", f"{ALLOCATED} / on ({RUN}) {REQUESTED}"),
        recorded(
            "run:rankwatch_goodput_runtime:ratio",
            f"sum by ({RUN}) ({productive}) / on ({RUN}) ({ALLOCATED} > 0)",
        ),
        recorded(
            "run:rankwatch_goodput_ettr:ratio", f"sum by ({RUN}) ({productive}) / on ({RUN}) {REQUESTED}"
        ),
        recorded(
            "run_state:rankwatch_badput:share",
            f"""
                {RANKS_BY_STATE}{{state!="{GoodputState.PRODUCTIVE}"}}
                / on ({RUN}) group_left ()
                {REQUESTED}
            """,
        ),
    )


def interval_advice_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The checkpoint interval by Young: sqrt(2 x blocking time of a save x mean time between interruptions).

    With an interval of d, saves cost blocking / d of the time, and interruptions half an interval each. Saves
    and interruptions are rare, so both are averaged over the window of the advice, from series of the run.
    """
    return (*_saves(config), *_interruptions(config), *_advice(config))


def _saves(config: RuleConfig) -> tuple[RecordingRule, ...]:
    # A short window: at the start of a run, the mean over an hour would be too low for an hour.
    window = duration(config.step_window_seconds)
    history = duration(config.interval_advice_window_seconds)
    counters = {
        _SAVES: "rankwatch_node_checkpoint_saves_total",
        _BLOCKING: "rankwatch_node_checkpoint_save_blocking_seconds_total",
        _SAVING: "rankwatch_node_checkpoint_save_seconds_total",
    }
    saves = f"(avg_over_time({_SAVES}[{history}]) > 0)"
    return (
        *(recorded(name, f"max by ({RUN}) (rate({each}[{window}]))") for name, each in counters.items()),
        recorded(
            _BLOCKED_SECONDS,
            f"avg_over_time({_BLOCKING}[{history}]) / on ({RUN}) {saves} and on ({RUN}) {REQUESTED}",
        ),
        recorded(_INTERVAL, f"1 / {saves} and on ({RUN}) {REQUESTED}"),
        *_slow_saves(config),
    )


def _slow_saves(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """The mean time of a save lately and before that, and the share of the time for which saves block.

    Each save stands in the rates for as long as their window, so sums of rates count saves.
    """
    window = f"[{duration(config.checkpoint_slow_window_seconds)}]"
    past = f"[{duration(config.interval_advice_window_seconds)}] offset {window[1:-1]}"
    fewest = (config.checkpoint_slow_saves - 0.5) / config.goodput_interval_seconds

    def mean(over: str) -> str:
        enough = f"(sum_over_time({_SAVES}{over}) > {fewest:g})"
        return f"sum_over_time({_SAVING}{over}) / on ({RUN}) {enough} and on ({RUN}) {REQUESTED}"

    enough = f"(sum_over_time({_SAVES}{window}) > {fewest:g})"
    return (
        recorded(SAVE_NOW, mean(window)),
        recorded(SAVE_BEFORE, mean(past)),
        recorded(
            BLOCKED_SHARE,
            f"avg_over_time({_BLOCKING}{window}) and on ({RUN}) {enough} and on ({RUN}) {REQUESTED}",
        ),
    )


def _interruptions(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """A node that joins later has only seen later attempts, so the first and the last are those of all."""
    history = duration(config.interval_advice_window_seconds)
    observed = f"count_over_time({REQUESTED}[{history}]) * {config.goodput_interval_seconds:g}"
    return (
        recorded(
            _INTERRUPTIONS,
            f"""
                max by ({RUN}) (max_over_time(rankwatch_run_attempt[{history}]))
                - on ({RUN})
                min by ({RUN}) (min_over_time(rankwatch_run_attempt[{history}]))
                and on ({RUN})
                {REQUESTED}
            """,
        ),
        recorded(
            _FAILURE_INTERVAL,
            f"{observed} / on ({RUN}) ({_INTERRUPTIONS} >= {_LEAST_INTERRUPTIONS})",
        ),
    )


def _advice(config: RuleConfig) -> tuple[RecordingRule, ...]:
    history = duration(config.interval_advice_window_seconds)
    young = f"sqrt(2 * {_BLOCKED_SECONDS} * on ({RUN}) {_FAILURE_INTERVAL})"
    saving = f"(avg_over_time({_SAVING}[{history}]) / on ({RUN}) (avg_over_time({_SAVES}[{history}]) > 0))"
    return (
        recorded(
            ADVICE,
            # A save must end before the next one begins, also where it blocks nobody.
            f"""
                ({young} >= on ({RUN}) {saving})
                or on ({RUN})
                ({saving} and on ({RUN}) {young})
                or on ({RUN})
                {young}
            """,
        ),
        recorded(GAIN, f"({_cost_of(_INTERVAL)})\n- on ({RUN})\n({_cost_of(ADVICE)})\n"),
    )


def _cost_of(interval: str) -> str:
    """Share of time that saves and lost work cost at an interval."""
    return (
        f"{_BLOCKED_SECONDS} / on ({RUN}) {interval}"
        f" + on ({RUN}) {interval} / on ({RUN}) (2 * {_FAILURE_INTERVAL})"
    )
