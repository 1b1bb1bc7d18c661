"""The first screen of a run: which rank, which node, which cause, since when, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rankwatch_alerts import CHECKPOINTS_GOODPUT_UID, HARDWARE_UID, ON_CALL_UID, RuleConfig
from rankwatch_alerts.rules import duration
from rankwatch_dashboards.alert_table import READS
from rankwatch_dashboards.board import FirstScreen
from rankwatch_dashboards.evidence import evidence
from rankwatch_dashboards.firing import age_of, firing
from rankwatch_dashboards.links import TO_NODE, TO_RANK, opens
from rankwatch_dashboards.lost_time import NO_TIME, lost_time, too_much, unproductive
from rankwatch_dashboards.panels import (
    GREEN,
    ORANGE,
    RANKS,
    RED,
    RUN,
    YELLOW,
    Column,
    Drawing,
    Panel,
    Query,
    most,
    verdict,
)
from rankwatch_dashboards.suspects import suspects
from rankwatch_dashboards.words import ALERTS, PHASES, SUSPICIONS

_ON_CALL = opens(ON_CALL_UID, "All that is wrong now")
_HARDWARE = opens(HARDWARE_UID, "Nodes and hardware")
_GOODPUT = opens(CHECKPOINTS_GOODPUT_UID, "Checkpoints and goodput")
_NO_ALERT = "no alert of this run fires, or the run is not seen: then the panels below are empty, too."
_STALL = "run:rankwatch_stall_seconds:max"
_RANKS_BY_EXCESS = "run_excess:rankwatch_ranks:count"
_LEAST_EXCESS, _MOST_EXCESS = -5, 50
"""Percent below and from which on that series counts all ranks together."""
_BUCKETS = (_LEAST_EXCESS, -2, 2, 5, 10, 20, _MOST_EXCESS)
"""Edges between the rows of all ranks, in percent over the median rank of the stage."""
_ODD = 5
"""Excess in percent from which a rank is worth a look."""
_PAGES = f"""scalar(clamp_max(count({firing(f'{RUN}, severity="critical"')}), 1) or vector(0))"""
_SEVERITIES = tuple(f'{RUN}, severity="{each}"' for each in ("critical", "warning"))
_BY_SEVERITY = ((1, ORANGE), (2, RED))
"""Of a suspicion with and without a page of the run: what stands in a ticket is no page."""


def first_screen(config: RuleConfig) -> FirstScreen:
    """Verdicts, the table of suspects, the ranks over time, the parts of the step, and the lost time."""
    return FirstScreen(
        verdicts=_verdicts(config),
        main=_suspects(config),
        views=(_ranks_over_time(config), _step(config), lost_time(config, _GOODPUT)),
    )


def _first() -> str:
    """The page of the run, else its ticket, whose value is below zero: that which fires longest, if known."""
    page, ticket = _ages(("alertname",))
    some_page, some_ticket = (f"group by (alertname) ({firing(each)})" for each in _SEVERITIES)
    return (
        f"topk(1, {page}) or on () topk(1, {some_page}) "
        f"or on () -1 * topk(1, {ticket}) or on () -1 * topk(1, {some_ticket})"
    )


def _ages(labels: tuple[str, ...]) -> tuple[str, str]:
    """For how long pages and tickets of the run fire."""
    page, ticket = (age_of(each, labels) for each in _SEVERITIES)
    return page, ticket


def _verdicts(config: RuleConfig) -> tuple[Panel, ...]:
    lost = verdict(
        "Lost time",
        "Share of the run's time in the last hour that made no progress that lasts: stalls, stragglers, "
        "restarts, checkpoints, waiting for data. Red: below the objective of goodput. Steps after a NaN "
        "count as good, although they are lost.",
        f"sum(run_state:rankwatch_badput:share{{{unproductive(RUN)}}})",
        unit="percentunit",
        steps=too_much(config),
        no_data=NO_TIME,
        links=(_GOODPUT,),
    )
    return (_alert(), _ranks(), _nodes(), _cause(), _fires_for(), lost)


def _alert() -> Panel:
    return verdict(
        "Verdict",
        "The alert of this run that has fired longest, of pages if there are any: red, tickets are "
        "orange. What began first is nearest to the cause. " + READS,
        _first(),
        steps=((-1e15, ORANGE), (0, RED)),
        name="{{alertname}}",
        words=ALERTS,
        empty="no alert seen",
        no_data=_NO_ALERT,
        links=(_ON_CALL,),
    )


def _ranks() -> Panel:
    ranks = suspects(RUN, ranks_only=True)
    return verdict(
        "Rank",
        "Up to two ranks that the rules suspect; the table below has all of them.",
        f"topk(2, {_PAGES} + group by (cluster, run, rank, node) ({ranks}))",
        steps=_BY_SEVERITY,
        name="rank {{rank}}",
        empty="no rank",
        no_data="no rank is suspected: the cause is none, or one of all ranks.",
        links=(TO_RANK,),
    )


def _nodes() -> Panel:
    named = firing(f'{RUN}, node!=""')
    return verdict(
        "Node",
        "Where these ranks run, or the node that an alert of this run names.",
        f"topk(2, {_PAGES} + group by (cluster, node) ({suspects(RUN)} or {named}))",
        steps=_BY_SEVERITY,
        name="{{node}}",
        empty="no node",
        no_data="no node is blamed.",
        links=(_HARDWARE,),
    )


def _cause() -> Panel:
    words = '"([a-z]+)_?([a-z]*)_?([a-z]*)"'
    failed = f"run:rankwatch_run_failed_timestamp_seconds:max{{{RUN}}}"
    causes = (
        f"group by (cluster, cause) ({suspects(RUN)})",
        f"max by (cluster, cause) (run_cause:rankwatch_lost_time:share{{{RUN}}})",
        f'max by (cluster, cause) (label_join({failed}, "cause", " ", "kind", "exception"))',
        f'group by (cluster, cause) (label_replace({firing(RUN)}, "cause", "$1 $2 $3", "reason", {words}))',
    )
    first = " or on () ".join(f"topk(1, {each})" for each in causes)
    return verdict(
        "Cause",
        "Why: of the suspected rank, else the proved cause that costs most, else how the last attempt "
        "failed, else the reason of an alert.",
        f"{_PAGES} + 1 + 0 * ({first})",
        steps=_BY_SEVERITY,
        name="{{cause}}",
        words=SUSPICIONS,
        empty="none",
        no_data="no cause is proved. A run that stands still without one: see its alert.",
        links=(_ON_CALL,),
    )


def _fires_for() -> Panel:
    page, ticket = _ages(())
    one = verdict(
        "Fires for",
        "For how long the oldest page of this run holds, else its oldest ticket.",
        "",
        unit="s",
        empty="-",
        no_data=_NO_ALERT,
        links=(_ON_CALL,),
    )
    both = (
        Query(expression=f"max({page})", legend="page", steps=((0, RED),)),
        Query(expression=f"max({ticket}) unless on () {page}", legend="ticket", steps=((0, ORANGE),)),
    )
    return replace(one, queries=both)


def _suspects(config: RuleConfig) -> Panel:
    return Panel(
        title="Suspects",
        description="Suspected ranks first, with the cause and what shows it; then those with the largest "
        "excess of work over their peers or the longest time in one phase, where it is longer than two "
        "scrapes. Red excess is that of RankwatchRunSlow (slow_rank) in a young run. A click opens the rank "
        "or its node.",
        no_data="no agent has seen ranks of this run.",
        unit="short",
        drawing=Drawing.TABLE,
        sorted_by=("-A",),
        queries=tuple(
            Query(expression=most(expression, count), legend="rank {{rank}} on {{node}}")
            for expression, count in _of_suspects(config)
        ),
        columns=(
            Column(name="A", title="Suspected", width=85, mappings=(("1", "yes", ORANGE), ("2", "yes", RED))),
            Column(name="rank", title="Rank", width=50, link=TO_RANK),
            Column(name="node", title="Node", width=100, link=TO_NODE),
            Column(name="cause", title="Cause", width=195, words=SUSPICIONS),
            Column(name="evidence", title="Evidence"),
            Column(name="state", title="State, if not running", width=150),
            Column(name="phase", title="Phase", width=100),
            Column(name="F", title="In it for", unit="s", width=85),
            Column(
                name="B",
                title="Excess over peers",
                unit="percentunit",
                width=140,
                steps=((config.straggler_least_residual, YELLOW), (config.straggler_residual, RED)),
            ),
            Column(name="C", title="Run waits, per step", unit="s", width=145),
            Column(name="D", title="Own work, per step", unit="s", width=145),
        ),
    )


def _of_suspects(config: RuleConfig) -> Iterator[tuple[str, int]]:
    """Queries of the table, A to G, each with its most rows."""
    rank = "max by (run, rank, node)"
    yield f"{_PAGES} + group by (run, rank, node, cause) ({suspects(RANKS)})", 50
    yield f"{rank} (rank:rankwatch_step_local_seconds:residual{{{RANKS}}})", 20
    yield f"{rank} (rank:rankwatch_straggler:lost_seconds{{{RANKS}}})", 20
    yield f"{rank} (rankwatch_recent_step_local_seconds{{{RANKS}}})", 50
    yield f'group by (run, rank, node, state) (rankwatch_rank_state{{{RANKS}, state!="running"}})', 50
    # What is scraped is old by up to one interval, and longer where a scrape was missed.
    unread = 2 * config.scrape_interval_seconds
    since = f"rankwatch_rank_phase_start_timestamp_seconds{{{RANKS}}}"
    yield f"max by (run, rank, node, phase) (time() - {since} > {unread:g})", 20
    yield evidence(), 50


def _count_between(low: int | None, high: int | None) -> str:
    """Ranks from one edge to another. A large run exports only those that may stand out: the others are
    around 0 %."""
    first, beyond = _LEAST_EXCESS - 1 if low is None else low, _MOST_EXCESS + 1 if high is None else high
    inside = "|".join(map(str, range(first, beyond)))
    ranks = _moving(_RANKS_COUNTED)
    if first < 0 < beyond:  # rounding down makes -0 of nothing
        others = _moving(f'{_RANKS_BY_EXCESS}{{{RUN}, excess!~"{inside}|-0"}}')
        return f"{ranks} - ({others} or 0 * {ranks}) and sum({_RANKS_BY_EXCESS}{{{RUN}}})"
    inside = f'{_RANKS_BY_EXCESS}{{{RUN}, excess=~"{inside}"}}'
    return f"{_moving(inside)} or 0 * {ranks}"


def _moving(series: str) -> str:
    """Of a run that stands still, the steps of a while ago say nothing."""
    return f"sum({series} unless on (cluster, run) {_STALL}{{{RUN}}})"


_RANKS_COUNTED = f"stage:rankwatch_ranks:count{{{RUN}}}"
_STANDING = (
    f"sum(run:rankwatch_ranks_running:sum{{{RUN}}} and on (cluster, run) {_STALL}{{{RUN}}}) "
    f"or 0 * {_moving(_RANKS_COUNTED)}"
)


def _row_name(low: int | None, high: int | None) -> str:
    if low is None:
        return f"below {high}%"
    return f"above {low:+}%" if high is None else f"{low:+}% to {high:+}%"


def _ranks_over_time(config: RuleConfig) -> Panel:
    def colour(low: int | None) -> str:
        excess = _LEAST_EXCESS if low is None else low
        near = YELLOW if excess >= _ODD else GREEN
        return RED if excess >= 100 * config.straggler_residual else near

    return Panel(
        title="All ranks by excess of work",
        description="How many ranks work how much longer than the median rank of their stage, and how many "
        "stand still (RankwatchRunStalled). All ranks belong to the row around 0 %. Red is a straggler, by "
        "its threshold in a young run, however many ranks there are; the table names it. Dashed lines: red "
        "alerts, orange incidents, purple attempts, green checkpoints; the bar below lasts as long.",
        no_data="ranks of this run have completed too few steps to compare.",
        unit="short",
        drawing=Drawing.HISTORY,
        queries=(
            Query(expression=_STANDING, legend="standing still", steps=((1, RED),)),
            *(
                Query(
                    expression=_count_between(low, high),
                    legend=_row_name(low, high),
                    steps=((1, colour(low)),),
                )
                for low, high in reversed(tuple(zip((None, *_BUCKETS), (*_BUCKETS, None), strict=True)))
            ),
        ),
    )


_LOCAL = f"quantile by (phase) (0.5, rankwatch_recent_stage_phase_seconds{{{RUN}}})"


def _step(config: RuleConfig) -> Panel:
    return Panel(
        title="Where a step goes",
        description="Seconds of a recent step by phase, of the median rank and stage. Waiting holds "
        "transfers, too; data loading above a twentieth of the step is slow, other is the loop itself. "
        "Phases of each rank stand below.",
        no_data="no step was completed of late: the run starts, stands still or has ended.",
        unit="s",
        drawing=Drawing.BARS,
        least=0,
        words=PHASES,
        empty_text=f"No step in the last {duration(config.step_window_seconds)}.",
        queries=(
            Query(
                expression=f"sort_desc({_LOCAL} > 0 or label_replace(max(run:rankwatch_step_seconds:mean"
                f'{{{RUN}}}) - sum({_LOCAL}) > 0, "phase", "waiting for others", "", ""))',
                legend="{{phase}}",
            ),
        ),
    )
