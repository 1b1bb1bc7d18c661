"""Rows: could work be lost, and what do checkpoints cost?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.panels import RANKS, RUN, Drawing, Panel, Query, highest


def at_a_glance(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert, also on the dashboard of a run."""
    return (
        _age_of_the_last_good_checkpoint(config),
        _CHECKPOINT_TIME_BY_STAGE,
        _CHECKPOINT_BLOCKING,
        _CHECKPOINT_FAILURES,
    )


def _age_of_the_last_good_checkpoint(config: RuleConfig) -> Panel:
    return Panel(
        title="Age of the last good checkpoint",
        description="Work that would be lost now. Above the line: RankwatchCheckpointAtRisk (stale). A "
        "saw-tooth is healthy.",
        unit="s",
        threshold=config.checkpoint_age_budget_seconds,
        queries=(
            Query(
                expression=f"time() - run:rankwatch_checkpoint_last_good_timestamp_seconds:max{{{RUN}}}",
                legend="{{run}}",
            ),
        ),
    )


_CHECKPOINT_TIME_BY_STAGE = Panel(
    title="Checkpoint time by stage",
    description="Share of time spent in each stage of checkpoint operations. A growing write or "
    "fsync points to the storage.",
    unit="percentunit",
    drawing=Drawing.STACKED,
    queries=(
        Query(
            expression="sum by (operation, checkpoint_stage) (rate("
            f"rankwatch_checkpoint_stage_seconds_total{{{RANKS}}}[$__rate_interval]))",
            legend="{{operation}} {{checkpoint_stage}}",
        ),
    ),
)


_CHECKPOINT_BLOCKING = Panel(
    title="Time blocked by checkpoints",
    description="Share of time for which checkpoints block training, on the worst rank. The rest of their "
    "time goes by beside training.",
    unit="percentunit",
    queries=(
        Query(
            expression="max by (operation) (rate("
            f"rankwatch_checkpoint_blocking_seconds_total{{{RANKS}}}[$__rate_interval]))",
            legend="{{operation}}",
        ),
    ),
)


_CHECKPOINT_FAILURES = Panel(
    title="Checkpoint failures",
    description="Failed operations in the last minutes. Any save or verify above zero raises "
    "RankwatchCheckpointAtRisk (failed).",
    unit="short",
    queries=(
        Query(
            expression="sum by (operation) (increase(rankwatch_checkpoint_operations_total"
            f'{{{RANKS}, outcome="failure"}}[$__rate_interval]))',
            legend="{{operation}}",
        ),
    ),
)


NEWEST = (
    Panel(
        title="Steps of the newest checkpoints",
        description="Newest checkpoint that any rank has saved, that is complete (all ranks that save have "
        "saved it), and that the run has verified; beside the present step. Saved far above complete: a rank "
        "does not finish its saves.",
        unit="short",
        span=12,
        queries=(
            Query(expression=f"max by (run) (rankwatch_step{{{RUN}}})", legend="{{run}} present step"),
            Query(
                expression=f"max by (run) (rankwatch_checkpoint_last_saved_step{{{RUN}}})",
                legend="{{run}} saved",
            ),
            Query(
                expression=f"run:rankwatch_checkpoint_complete_step:max{{{RUN}}}", legend="{{run}} complete"
            ),
            Query(
                expression=f"max by (run) (rankwatch_checkpoint_last_verified_step{{{RUN}}})",
                legend="{{run}} verified",
            ),
        ),
    ),
    Panel(
        title="Ages of the newest checkpoints",
        description="Time since the newest checkpoint was complete, and since the run has verified one.",
        unit="s",
        span=12,
        queries=(
            Query(
                expression=f"time() - run:rankwatch_checkpoint_complete_timestamp_seconds:max{{{RUN}}}",
                legend="{{run}} complete",
            ),
            Query(
                expression="time() - max by (run) "
                f"(rankwatch_checkpoint_last_verified_timestamp_seconds{{{RUN}}})",
                legend="{{run}} verified",
            ),
        ),
    ),
    Panel(
        title="Work at risk",
        description="Training since the newest complete checkpoint, over all ranks and over all GPUs: what "
        "a crash would lose now. It does not grow while the run stands still.",
        unit="s",
        queries=(
            Query(
                expression=f"run:rankwatch_work_at_risk_seconds:sum{{{RUN}}}", legend="{{run}} rank-seconds"
            ),
            Query(
                expression=f"run:rankwatch_gpu_work_at_risk_seconds:sum{{{RUN}}}",
                legend="{{run}} GPU-seconds",
            ),
        ),
    ),
    Panel(
        title="Resumes",
        description="Resumes, and the step from which the present attempt has resumed. Below the "
        "newest complete one: RankwatchCheckpointAtRisk (resumed_from_older).",
        unit="short",
        queries=(
            Query(
                expression=f"max by (run) (increase(rankwatch_rank_resumes_total{{{RUN}}}[1h]))",
                legend="{{run}} resumes in the last hour",
            ),
            Query(
                expression=f"max by (run) (rankwatch_rank_restored_step{{{RUN}}})",
                legend="{{run}} restored step",
            ),
        ),
    ),
    Panel(
        title="Steps lost at resumes",
        description="Steps that were done after the checkpoint that a resume took, and must be done again; "
        "by all resumes of the last hour.",
        unit="short",
        queries=(
            Query(
                expression=f"max by (run) (increase(rankwatch_rank_steps_lost_total{{{RUN}}}[1h]))",
                legend="{{run}}",
            ),
        ),
    ),
)


def saving(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels of how saves go; a threshold is that of the alert."""
    return (_BYTES_PER_SECOND, _slowest_writer(config), _BESIDE, _ATTEMPTS, _FAILURES_BY_STAGE, _UNFINISHED)


_WRITE = f'{RANKS}, checkpoint_stage="write"'

_BYTES_PER_SECOND = Panel(
    title="Bytes per second",
    description="Bytes of saves and loads over their whole time, of the slowest and the fastest rank; and "
    "of saves over the time in which files are written.",
    unit="Bps",
    queries=(
        *(
            Query(
                expression=f"{end} by (operation) (rate(rankwatch_checkpoint_operation_bytes_total{{{RANKS}}}"
                "[$__rate_interval]) / (rate(rankwatch_checkpoint_operation_seconds_total"
                f"{{{RANKS}}}[$__rate_interval]) > 0))",
                legend=f"{{{{operation}}}} {end}",
            )
            for end in ("min", "max")
        ),
        Query(
            expression=f"sum(rate(rankwatch_checkpoint_stage_bytes_total{{{_WRITE}}}[$__rate_interval])) / "
            f"(sum(rate(rankwatch_checkpoint_stage_seconds_total{{{_WRITE}}}[$__rate_interval])) > 0)",
            legend="stage write, mean",
        ),
    ),
)


def _slowest_writer(config: RuleConfig) -> Panel:
    return Panel(
        title="Slowest writer",
        description="How much longer the slowest rank wrote than the median rank, in their last saves, "
        "beside the median. Above the line and more than three times as long: RankwatchCheckpointSlow "
        "(one_writer).",
        unit="s",
        threshold=config.checkpoint_write_skew_seconds,
        queries=(
            Query(
                expression=highest(f"rank:rankwatch_checkpoint_write_skew_seconds:max{{{RUN}}}"),
                legend="rank {{rank}} on {{node}}, beyond the median",
            ),
            Query(
                expression=f"run:rankwatch_checkpoint_write_seconds:median{{{RUN}}}", legend="{{run}} median"
            ),
        ),
    )


_BESIDE = Panel(
    title="Blocking and background time of saves",
    description="Share of time for which saves block training, and for which they go on beside it, on the "
    "worst rank.",
    unit="percentunit",
    queries=(
        Query(
            expression="max(rate(rankwatch_checkpoint_blocking_seconds_total"
            f'{{operation="save", {RANKS}}}[$__rate_interval]))',
            legend="blocking",
        ),
        Query(
            expression="max(rate(rankwatch_checkpoint_operation_seconds_total"
            f'{{operation="save", {RANKS}}}[$__rate_interval]) - rate('
            f'rankwatch_checkpoint_blocking_seconds_total{{operation="save", {RANKS}}}[$__rate_interval]))',
            legend="in the background",
        ),
    ),
)

_ATTEMPTS = Panel(
    title="Attempts by outcome",
    description="Operations that ended in the window, summed over ranks. Unfinished: the process ended in "
    "the middle of it.",
    unit="short",
    queries=(
        Query(
            expression="sum by (operation, outcome) (increase(rankwatch_checkpoint_operations_total"
            f"{{{RANKS}}}[$__rate_interval])) > 0",
            legend="{{operation}} {{outcome}}",
        ),
    ),
    empty_when_healthy=True,
)

_FAILURES_BY_STAGE = Panel(
    title="Failures by stage",
    description="Stages that have failed in the last hour. `other`: outside of all stages. "
    "In the background: training had gone on, so the loop learns of it late or never.",
    unit="short",
    queries=(
        Query(
            expression="sum by (operation, checkpoint_stage) (increase("
            f"rankwatch_checkpoint_stage_failures_total{{{RANKS}}}[1h])) > 0",
            legend="{{operation}} {{checkpoint_stage}}",
        ),
        Query(
            expression=f"sum(increase(rankwatch_checkpoint_background_failures_total{{{RANKS}}}[1h])) > 0",
            legend="in the background",
        ),
    ),
    empty_when_healthy=True,
)

_UNFINISHED = Panel(
    title="Saves under way",
    description="Most saves that a rank has under way, the age of the oldest one, and saves in the last "
    "hour that were not finished when the next one began. The latter again and again: "
    "RankwatchCheckpointSlow (overlap).",
    unit="short",
    queries=(
        Query(expression=f"max(rankwatch_checkpoint_saves_pending{{{RANKS}}})", legend="under way"),
        Query(
            expression=f"max(time() - rankwatch_checkpoint_save_pending_since_timestamp_seconds{{{RANKS}}})",
            legend="age of the oldest in seconds",
        ),
        Query(
            expression=f"max(increase(rankwatch_checkpoint_saves_overlapped_total{{{RUN}}}[1h]))",
            legend="overlaps in the last hour",
        ),
    ),
)
