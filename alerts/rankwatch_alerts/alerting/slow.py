"""Alerts on a run that is slow: one for each cause. Only RankwatchStraggler names a rank.

The conditions are in the recorded series, which exist only while they hold.
"""

from __future__ import annotations

from rankwatch.conventions import Cause
from rankwatch_alerts.alerting.alert import (
    OF_RANK,
    OF_RUN,
    alert_rule,
    lasting,
    listed,
    looked_up,
    matching,
    value_of,
)
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.stragglers import COSTLY, STRAGGLER
from rankwatch_alerts.rules import Alert, AlertRule, Severity, duration

_OF_RUN, _OF_RANK = matching(OF_RUN), matching(OF_RANK)
_OF_NODE = ("cluster", "run", "node")
_GPUS_OF_NODE = ("cluster", "node")
_ALL_CAUSES = listed(
    f"topk(6, run_cause:rankwatch_lost_time:share{_OF_RUN})",
    OF_RUN,
    "{{ $series.Labels.cause }} {{ $series.Value | humanizePercentage }}",
    "none now",
)
"""All causes that are proved for the run, the most expensive first: the one that is paged may not be it."""
_RANK_ON_NODE = "{{ $series.Labels.rank }} (node {{ $series.Labels.node }}, "


def straggler(config: RuleConfig) -> tuple[AlertRule, ...]:
    """A warning for every straggler, and beside it a critical alert for one that costs much.

    Phase and slowdown are annotations: as labels they would change while the alert is pending and start
    it anew.
    """
    return (
        _straggler(config, Severity.WARNING, STRAGGLER),
        _straggler(config, Severity.CRITICAL, COSTLY),
    )


def _straggler(config: RuleConfig, severity: Severity, record: str) -> AlertRule:
    phase = looked_up(
        f"rank_phase:rankwatch_step_local_seconds:excess_share{_OF_RANK} > {config.phase_share:g}",
        OF_RANK,
        "{{ (. | first).Labels.phase }}",
        "inconclusive",
    )
    residual = value_of(
        f"rank:rankwatch_step_local_seconds:residual{_OF_RANK}",
        OF_RANK,
        "an unknown share",
        "humanizePercentage",
    )
    return alert_rule(
        config,
        Alert.STRAGGLER,
        lasting(
            config,
            Alert.STRAGGLER,
            severity,
            condition=f"max by (cluster, run, rank, node) ({record})",
            record=record,
            by=OF_RANK,
            seconds=config.straggler_for_seconds,
        ),
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=severity,
        summary="One rank is slower than its peers and holds up the whole run.",
        description=(
            "Rank {{ $labels.rank }} of run {{ $labels.run }} on node {{ $labels.node }} takes "
            f"{residual} longer for its own work than its peers (phase: {phase}). The run takes "
            '{{ $value | printf "%.2f" }} times as long as it would with this rank at their pace. '
            "[[Check this rank's phases and its node's hardware]]; if it stays slow, replace the node "
            f"at the next checkpoint.{_second_witness(config)}{_gpu_witness(config)}"
        ),
        cause=Cause.SLOW_RANK,
        causes=_ALL_CAUSES,
        phase=phase,
        slowdown='{{ $value | printf "%.2f" }}',
    )


def _second_witness(config: RuleConfig) -> str:
    """Whether the rank's peers wait for it in collectives. Nothing where no rank of its node shares a group,
    and nothing against it in a pipeline, whose schedule decides which stage comes last.

    On GPUs these are durations of kernels, by NCCL's flight recorders, and local times know nothing of them.
    Ranks of one node are compared on the same collectives, so that their waits are, too.
    """
    wait = f"rate(rankwatch_collective_wait_seconds_total%s[{duration(config.step_window_seconds)}])"
    of_rank, of_node = wait % _OF_RANK, wait % matching(_OF_NODE)
    least = (
        f"bottomk(1, sum by (group, members) ({of_rank}) / on (group, members) "
        f"(quantile by (group, members) (0.5, sum by (group, members, rank) ({of_node})) > 0))"
    )
    limit = f"{config.straggler_wait_ratio:.2f}"
    confirmed = f"{{{{ if lt (. | first | value) {limit} }}}}"
    return looked_up(
        f"{least} < {limit} or {least} unless on () (run:rankwatch_stages:count{_OF_RUN} > 1)",
        (*OF_RANK, *_OF_NODE) * 2 + OF_RUN,
        f" {confirmed}Its peers wait for it{{{{ else }}}}But its peers do not wait for it{{{{ end }}}}: "
        'in collectives of {{ . | first | label "group" }} it waits '
        "{{ . | first | value | humanizePercentage }} as long as the median rank of its node"
        f"{confirmed}.{{{{ else }}}}, so do not replace anything yet.{{{{ end }}}}",
        "",
    )


def _gpu_witness(config: RuleConfig) -> str:
    """Whether the rank's GPU works more or less than those of its peers on the node: SM activity, else power.

    A GPU that waits in a collective spins on few of its SMs; one whose host is late does not even do that.
    Power cannot tell an idle GPU from one whose clocks are held down. In a pipeline stages differ, so it is
    not asked.
    """
    window = duration(config.step_window_seconds)
    sm_percent = (
        f'100 * avg_over_time(rankwatch_gpu_activity_ratio{{unit="sm", cluster=%q, node=%q}}[{window}])'
    )
    watts = f"rate(rankwatch_gpu_energy_joules_total{matching(_GPUS_OF_NODE)}[{window}])"
    by_power = _against_peers(
        config,
        watts,
        "power {own} W against {peers} W",
        "look at its clocks, its host and its loader before you replace the GPU",
        none="",
    )
    return _against_peers(
        config,
        sm_percent,
        "SM activity {own}% against {peers}%",
        "look at its host and its loader before the GPU",
        none=by_power,
    )


def _against_peers(config: RuleConfig, work: str, numbers: str, if_less: str, *, none: str) -> str:
    """A sentence on the work of the rank's GPU and the median of its peers', if they differ clearly.

    `work` has a value for each GPU of the node; a training GPU with none at all was not measured.
    `none` is for ranks whose GPU or peers have no value.
    """
    work = f"(max by (gpu) ({work}) > 0)"
    of_rank = f"on (gpu) rankwatch_rank_gpu_info{_OF_RANK}"
    own = f"max({work} and {of_rank})"
    peers = f"quantile(0.5, {work} and on (gpu) rankwatch_rank_gpu_info{matching(_OF_NODE)} unless {of_rank})"
    labels_of_own, labels_of_peers = (*_GPUS_OF_NODE, *OF_RANK), (*_GPUS_OF_NODE, *_OF_NODE, *OF_RANK)
    shown = numbers.format(
        own=value_of(own, labels_of_own, "unknown", 'printf "%.0f"'),
        peers=value_of(peers, labels_of_peers, "unknown", 'printf "%.0f"'),
    )
    more, less = 1 + config.straggler_gpu_difference, 1 - config.straggler_gpu_difference
    return looked_up(
        f"{own} / {peers} unless on () (run:rankwatch_stages:count{_OF_RUN} > 1)",
        (*labels_of_own, *labels_of_peers, *OF_RUN),
        "{{ $ratio := . | first | value }}"
        f"{{{{ if or (gt $ratio {more:.2f}) (lt $ratio {less:.2f}) }}}} Its GPU works "
        f"{{{{ if gt $ratio 1.0 }}}}more{{{{ else }}}}less{{{{ end }}}} than those of its peers ({shown}): "
        "{{ if gt $ratio 1.0 }}it computes while they wait{{ else }}"
        f"{if_less}{{{{ end }}}}.{{{{ end }}}}",
        none,
    )


def _without_rank(
    config: RuleConfig,
    alert: Alert,
    record: str,
    by: tuple[str, ...] = OF_RUN,
    *,
    summary: str,
    description: str,
    cause: Cause,
    slowdown: str,
) -> AlertRule:
    """A ticket that names no rank: replacing one would not help."""
    return alert_rule(
        config,
        alert,
        lasting(
            config,
            alert,
            Severity.WARNING,
            condition=f"max by ({', '.join(by)}) ({record})",
            record=record,
            by=by,
            seconds=config.cause_for_seconds,
        ),
        for_seconds=0,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        summary=summary,
        description=description,
        cause=cause,
        causes=_ALL_CAUSES,
        slowdown=slowdown,
    )


def slow_stage(config: RuleConfig) -> AlertRule:
    """Every rank of one pipeline stage computes longer than the other stages: the run goes at its pace.

    A slow node that holds all ranks of a stage looks the same, so the description lists the nodes.
    """
    of_stage = ("cluster", "run", "stage")
    nodes = listed(
        f"topk(5, count by (node) (rankwatch_recent_step_compute_seconds{matching(of_stage)}))",
        of_stage,
        "{{ $series.Labels.node }} ({{ $series.Value }})",
        "not known",
        by="node",
    )
    ratio = value_of(
        f"stage:rankwatch_step_compute_seconds:ratio{matching(of_stage)}", of_stage, "an unknown number of"
    )
    return _without_rank(
        config,
        Alert.SLOW_STAGE,
        "stage:rankwatch_slow_stage:slowdown",
        of_stage,
        summary="One pipeline stage takes longer than the others, on all of its ranks.",
        description=(
            "Every rank of stage {{ $labels.stage }} of run {{ $labels.run }} computes longer than the other "
            f"stages: {ratio} times as long (median). The run takes "
            '{{ $value | printf "%.2f" }} times as long as it would with this stage at their pace. '
            f"Ranks of the stage by node (at most 5 nodes): {nodes}. [[If they are on several nodes, give "
            "the stage fewer layers]]; if on one node, check that node first."
        ),
        cause=Cause.SLOW_STAGE,
        slowdown='{{ $value | printf "%.2f" }}',
    )


def unequal_batches(config: RuleConfig) -> AlertRule:
    """Batches hold unequal work, and the ranks wait for each other in turn."""
    evidence = listed(
        f"run_reason:rankwatch_unequal_batches:share{_OF_RUN}",
        OF_RUN,
        "{{ $series.Labels.reason }} {{ $series.Value | humanizePercentage }}",
        "not known",
        by="reason",
    )
    return _without_rank(
        config,
        Alert.UNEQUAL_BATCHES,
        "run:rankwatch_unequal_batches:share",
        summary="The ranks of a run wait for each other because their batches are unequal.",
        description=(
            "Run {{ $labels.run }} loses about {{ $value | humanizePercentage }} of its time because its "
            f"batches hold unequal work. Share of the step by evidence: {evidence} (work: step time follows "
            "the tokens of the step; microbatches: forward and backward of the same microbatches take long; "
            "ranks: some ranks get more tokens than others). No rank is at fault: [[balance the batches]]."
        ),
        cause=Cause.UNEQUAL_BATCHES,
        slowdown=value_of(f"1 / (1 - run:rankwatch_unequal_batches:share{_OF_RUN})", OF_RUN, "unknown"),
    )


def slow_data_loading(config: RuleConfig) -> AlertRule:
    """Most ranks wait for their batches. One that waits alone is a straggler with phase `data_loading`."""
    slowest = listed(
        f"topk(3, rankwatch_recent_data_wait_ratio{_OF_RUN})",
        OF_RUN,
        _RANK_ON_NODE + "{{ $series.Value | humanizePercentage }})",
        "not known",
    )
    slowdown = value_of(f"1 / (1 - run:rankwatch_slow_data_loading:share{_OF_RUN})", OF_RUN, "unknown")
    return _without_rank(
        config,
        Alert.SLOW_DATA_LOADING,
        "run:rankwatch_slow_data_loading:share",
        summary="Most ranks of a run wait for data.",
        description=(
            "Most ranks of run {{ $labels.run }} that load data wait for it: the median rank during "
            "{{ $value | humanizePercentage }} of its step. The run loses at most that share. The three "
            f"ranks that wait longest: {slowest}. [[Check what they share: storage, its network]], the "
            "number of loader workers."
        ),
        cause=Cause.DATA_LOADING,
        slowdown=f"at most {slowdown}",
    )


def network_degraded(config: RuleConfig) -> AlertRule:
    """Transfers of a process group take longer than they did; groups of one mesh dimension share a name.

    It resolves by itself once half of the baseline is as slow.
    """
    of_group = ("cluster", "run", "group", "operation")
    # Rules of two groups are evaluated side by side: what the alert was raised by may be gone a moment later.
    growth = f"group:rankwatch_collective_transfer_seconds:growth{matching(of_group)}"
    groups = listed(
        f"topk(3, last_over_time({growth}[{duration(config.missed_seconds)}]) > {config.network_growth:g})",
        of_group,
        '{{ $series.Labels.members }} ({{ $series.Labels.size_class }}, {{ $series.Value | printf "%.1f" }} '
        "times)",
        "not known",
    )
    slowdown = value_of(
        "1 / (1 - max by (cluster, run, group, operation) "
        f"(group:rankwatch_network_degraded:share{matching(of_group)}))",
        of_group,
        "unknown",
    )
    return _without_rank(
        config,
        Alert.NETWORK_DEGRADED,
        "group:rankwatch_network_degraded:share",
        of_group,
        summary="Transfers of a process group take longer than they did, while local work does not.",
        description=(
            "{{ $labels.operation }} in process group {{ $labels.group }} of run {{ $labels.run }} takes "
            "longer than in the hours before. The run loses about {{ $value | humanizePercentage }} of its "
            f"time, unless compute hides it. Ranks of the groups that slowed most, by size of the transfer: "
            f"{groups}. The last rank to arrive waits for nobody, so the transfer itself is slow: [[check "
            "the links and NICs of these ranks]]."
        ),
        cause=Cause.NETWORK,
        slowdown=f"about {slowdown}",
    )


def step_time_regressed(config: RuleConfig) -> tuple[AlertRule, ...]:
    """All ranks got slower, whatever the cause: against the run's own past, and against its last run.

    The series of a run goes on over its attempts. Of an attempt that is younger than the baseline, all that
    is older than the baseline belongs to attempts before it.
    """
    past = duration(config.network_baseline_seconds)
    mean, step = "run:rankwatch_step_seconds:mean", duration(config.goodput_interval_seconds * 10)
    week = duration(config.objective_window_seconds)
    fewest = config.network_min_baseline_seconds / config.scrape_interval_seconds
    own_past = f"""
        {mean} / quantile_over_time(0.5, {mean}[{past}]) > {config.step_regression:g}
        and
        count_over_time({mean}[{past}]) > {fewest:g}
    """
    last_run = f"""
        {mean} / quantile_over_time(0.5, {mean}[{week}:{step}] offset {past}) > {config.step_regression:g}
        and on (cluster, run)
        time() - max by (cluster, run) (rankwatch_run_attempt_start_timestamp_seconds)
        < {config.network_baseline_seconds:g}
    """
    return (
        _step_time_regressed(config, "own_past", own_past, f"the median of the last {past}"),
        _step_time_regressed(config, "last_run", last_run, "before its present attempt"),
    )


def _step_time_regressed(config: RuleConfig, reason: str, expression: str, past: str) -> AlertRule:
    now = value_of(
        f"run:rankwatch_step_seconds:mean{matching(OF_RUN)}", OF_RUN, "not known", "humanizeDuration"
    )
    return alert_rule(
        config,
        Alert.STEP_TIME_REGRESSED,
        expression,
        for_seconds=config.cause_for_seconds,
        keep_firing_seconds=config.keep_firing_seconds,
        severity=Severity.WARNING,
        labels={"reason": reason},
        summary="The steps of a run take longer than they did.",
        description=(
            'Steps of run {{ $labels.run }} take {{ $value | printf "%.2f" }} times as long as '
            f"{past}, now {now}, and cost as much more. No single rank, input or link need be to blame: "
            "[[compare the parts of the step, versions and hosts]] with those before."
        ),
    )


def jitter(config: RuleConfig) -> AlertRule:
    """Many ranks have single late steps; each is soon as fast as its peers again."""
    latest = listed(
        f"topk(3, rankwatch_recent_late_step_seconds{_OF_RUN})",
        OF_RUN,
        _RANK_ON_NODE + "{{ $series.Value | humanizeDuration }} a step)",
        "not known",
    )
    return _without_rank(
        config,
        Alert.JITTER,
        "run:rankwatch_jitter:share",
        summary="Many ranks of a run are late in single steps, in turn.",
        description=(
            "Run {{ $labels.run }} loses about {{ $value | humanizePercentage }} of its time to late steps "
            f"that are spread over its ranks; no rank has more than {config.jitter_rank_share:.0%} of that "
            f"time. The three ranks with most of it: {latest}. No rank is at fault: [[look for what "
            "interrupts all of them]] (garbage collection, other processes, page faults, power management)."
        ),
        cause=Cause.JITTER,
        slowdown=value_of(f"1 / (1 - run:rankwatch_jitter:share{_OF_RUN})", OF_RUN, "unknown"),
    )
