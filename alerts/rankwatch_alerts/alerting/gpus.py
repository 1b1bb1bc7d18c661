"""Alerts on GPUs and their driver.

What a run can lose now pages: a GPU that is gone, its memory, its reset. What only slows a run down is a
ticket, because RankwatchStraggler pages once the run has become slow; a power brake slows a whole rack down,
so that no rank stands out, and pages itself.
"""

from __future__ import annotations

from textwrap import dedent

from rankwatch_alerts.alerting.hardware import GPU, NODE, THE_GPU, Fault, hardware_alerts, newest
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording.hardware import RECENT_XID
from rankwatch_alerts.rules import Alert, AlertRule, duration

_GPU = "cluster, node, gpu"
_NVLINK5 = "14[4-9]|150"
"""XID codes of which the kernel log says whether they are fatal; the table cannot know."""
_THERMAL = "thermal|sw_thermal_slowdown|hw_thermal_slowdown"
_EXHAUSTED = 'rankwatch_gpu_row_remap_banks{availability="none"}'
_MOST_RETIRED_PAGES = 60
"""NVIDIA replaces GPUs from 60 retired pages on ("Dynamic page retirement", RMA policy)."""


def gpu_alerts(config: RuleConfig) -> tuple[AlertRule, ...]:
    """All alerts on GPUs, the gravest first."""
    faults = (
        _lost(config),
        _driver_unresponsive(config),
        _missing(config),
        _xid(config),
        _ecc_uncorrected(config),
        *_needs_reset(config),
        *_needs_replacement(config),
        _power_brake(config),
        _throttled(config),
        _pcie_degraded(config),
    )
    return tuple(rule for fault in faults for rule in hardware_alerts(config, fault))


def _lost(config: RuleConfig) -> Fault:
    """The lookback is long because an agent that restarts no longer knows a GPU that is gone."""
    return Fault(
        alert=Alert.GPU_LOST,
        part=GPU,
        summary="A GPU does not answer any more.",
        happened=f"{THE_GPU} is lost: it answered the driver before and does not now.",
        page=f"{newest('rankwatch_gpu_up', duration(config.absence_lookback_seconds))} == 0",
        if_used="It cannot go on. [[Drain the node, restart the run without it]], and reset or reboot.",
        if_idle="[[Drain the node before a run gets it]], and reset the GPU or reboot.",
        for_seconds=config.confirm_seconds,
    )


def _driver_unresponsive(config: RuleConfig) -> Fault:
    window = duration(config.absence_window_seconds)
    return Fault(
        alert=Alert.GPU_DRIVER_UNRESPONSIVE,
        part=NODE,
        summary="The NVIDIA driver of a node does not return from calls.",
        happened="The NVIDIA driver of node {{ $labels.node }} does not return from a call, so nothing is "
        "known of its GPUs.",
        page=f"""
            {newest('rankwatch_gpu_driver_state{state="unresponsive"}', window, "cluster, node")}
            unless on (cluster, node)
            rankwatch_gpu_driver_state{{state=~"in_use|released"}}
        """,
        if_used="[[Look in the kernel log for an XID]]; if the run stands still as well, reboot the node.",
        if_idle="[[Look in the kernel log for an XID]]; keep runs away until the node has been rebooted.",
        for_seconds=config.absence_for_seconds,
    )


def _missing(config: RuleConfig) -> Fault:
    """All through the window, so that GPUs of a node that boots are not missing."""
    window = duration(config.absence_window_seconds)
    expected = f"min by (cluster, node) (min_over_time(rankwatch_gpus_expected[{window}]))"
    visible = f"max by (cluster, node) (max_over_time(rankwatch_gpus_visible[{window}]))"
    return Fault(
        alert=Alert.GPUS_MISSING,
        part=NODE,
        summary="A node has fewer GPUs than are on its PCI bus.",
        happened="{{ $value }} of the GPUs on the PCI bus of node {{ $labels.node }} do not answer the "
        "driver.",
        ticket=f"{expected} - {visible} > 0",
        if_idle="Runs that need all of them will not start here: [[look for the missing ones in the kernel "
        "log]], and reboot the node.",
        for_seconds=config.absence_for_seconds,
    )


def _xid(config: RuleConfig) -> Fault:
    window = duration(config.event_window_seconds)
    fatal = f'increase(rankwatch_gpu_xid_events_total{{severity="critical"}}[{window}]) > 0'
    critical, nonfatal = f'{RECENT_XID}{{severity="critical"}}', f'{RECENT_XID}{{xid=~"{_NVLINK5}"}}'
    return Fault(
        alert=Alert.GPU_XID,
        part=GPU,
        summary="The NVIDIA driver reported an error of a GPU.",
        happened=f"{THE_GPU} reported XID {{{{ $labels.xid }}}} ({{{{ $labels.meaning }}}}) in the last "
        f"{window}. NVIDIA's table asks for: {{{{ $labels.action }}}}.",
        page=f"""
            {critical}
            unless
            ({nonfatal} unless on ({_GPU}) {fatal})
        """,
        ticket=f"""
            {RECENT_XID}{{severity="warning"}}
            or
            ({nonfatal} unless on ({_GPU}) {fatal})
        """,
        info=f'{RECENT_XID}{{severity="application"}}',
        if_used="The GPU cannot be relied on: [[save a checkpoint if the run still makes progress]], and do "
        "what the table asks for.",
        if_idle="[[Do what the table asks for]] before the next run gets this GPU.",
        for_seconds=config.confirm_seconds,
    )


def _ecc_uncorrected(config: RuleConfig) -> Fault:
    window = duration(config.event_window_seconds)
    return Fault(
        alert=Alert.GPU_ECC_UNCORRECTED,
        part=GPU,
        summary="A GPU had memory errors that it could not correct.",
        happened=f'{THE_GPU} had {{{{ $value | printf "%.0f" }}}} uncorrectable memory error(s) in the last '
        f"{window}.",
        page=f"""
            max by ({_GPU}) (increase(rankwatch_gpu_ecc_errors_total{{kind="uncorrected"}}[{window}])) > 0
        """,
        if_used="Its process has ended or will; what it computed since cannot be trusted. [[Resume from a "
        "checkpoint from before, on another GPU]].",
        if_idle="[[Reset the GPU]], so that the bad row is replaced, before the next run gets it.",
        for_seconds=config.confirm_seconds,
    )


def _needs_reset(config: RuleConfig) -> tuple[Fault, ...]:
    window = duration(config.absence_window_seconds)
    summary = "A GPU must be reset before it can be relied on again."
    asked = newest('rankwatch_gpu_recovery_action{action!="none"}', window, f"{_GPU}, action")
    return (
        Fault(
            alert=Alert.GPU_NEEDS_RESET,
            part=GPU,
            reason="driver",
            summary=summary,
            happened=f"The driver asks for {{{{ $labels.action }}}} of {THE_GPU}.",
            page=f"""
                {asked} == 1
                unless on ({_GPU})
                (rankwatch_gpu_recovery_action{{action="none"}} == 1)
            """,
            if_used="The run has failed on it or will: [[stop the run, do what the driver asks for, resume]]."
            "",
            if_idle="[[Drain the node]] and do it before the next run gets this GPU.",
            for_seconds=config.confirm_seconds,
        ),
        *(
            Fault(
                alert=Alert.GPU_NEEDS_RESET,
                part=GPU,
                reason=reason,
                summary=summary,
                happened=f"{THE_GPU} has a bad {what} of memory that only a reset takes out of use.",
                ticket=f"{newest(f'rankwatch_gpu_{reason}', window)} == 1",
                if_idle="[[Reset the GPU when its run has ended]], and before the next one gets it.",
                for_seconds=config.confirm_seconds,
            )
            for reason, what in (("row_remap_pending", "row"), ("page_retirement_pending", "page"))
        ),
    )


def _needs_replacement(config: RuleConfig) -> tuple[Fault, ...]:
    """Tickets: the run goes on, and if an error hits it, RankwatchGpuEccUncorrected pages."""
    window = duration(config.absence_window_seconds)
    retired = newest("rankwatch_gpu_retired_pages", window, f"{_GPU}, kind")
    faults = {
        "sram_ecc_threshold": (
            f"{newest('rankwatch_gpu_sram_ecc_threshold_exceeded', window)} == 1",
            "had more uncorrectable errors of its on-chip memory than NVIDIA's limit.",
        ),
        "row_remap_failed": (
            f"{newest('rankwatch_gpu_row_remap_failed', window)} == 1",
            "has a bad memory row that could not be replaced.",
        ),
        "row_remap_exhausted": (
            f"{newest(_EXHAUSTED, window)} > 0",
            "has {{ $value }} memory bank(s) without a spare row.",
        ),
        "retired_pages": (
            f"sum by ({_GPU}) ({retired}) >= {_MOST_RETIRED_PAGES}",
            "has {{ $value }} retired memory pages.",
        ),
    }
    return tuple(
        Fault(
            alert=Alert.GPU_NEEDS_REPLACEMENT,
            part=GPU,
            reason=reason,
            summary="A GPU has memory that is worn out, and must be replaced.",
            happened=f"{THE_GPU} {happened}",
            ticket=expression,
            if_idle="[[Move its run at the next checkpoint, drain the node]], and have the GPU replaced.",
            for_seconds=config.confirm_seconds,
        )
        for reason, (expression, happened) in faults.items()
    )


def _slowed(reasons: str, active: str, window: str) -> str:
    """The largest share of the time in which one of the reasons held the clocks down.

    Where the driver counts no time for a reason, the share of scrapes that saw it.
    """
    return dedent(f"""
        max by ({_GPU}) (
          rate(rankwatch_gpu_throttle_seconds_total{{reason=~"{reasons}"}}[{window}])
          or
          avg_over_time(rankwatch_gpu_throttle_active{{reason=~"{active}"}}[{window}])
        )
    """).strip()


def _power_brake(config: RuleConfig) -> Fault:
    window = duration(config.step_window_seconds)
    brake = "hw_power_brake_slowdown"
    return Fault(
        alert=Alert.GPU_POWER_BRAKE,
        part=GPU,
        summary="The power supply brakes a GPU.",
        happened=f"The power brake held the clocks of {THE_GPU} down for "
        f"{{{{ $value | humanizePercentage }}}} of the last {window}: its power supply is overloaded or "
        "has failed.",
        page=f"{_slowed(brake, brake, window)} > {config.power_brake_share:g}",
        if_used="The whole run is as slow as this GPU. [[Check the power supplies of the node and its "
        "rack]], and whether other nodes there brake too.",
        if_idle="[[Check the power supplies of the node and its rack]] before a run gets this GPU.",
        for_seconds=config.confirm_seconds,
    )


def _throttled(config: RuleConfig) -> Fault:
    window = duration(config.step_window_seconds)
    active = "hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown"
    return Fault(
        alert=Alert.GPU_THROTTLED,
        part=GPU,
        summary="A GPU runs slower because of heat or a hardware slowdown.",
        happened=f"Heat or a hardware slowdown held the clocks of {THE_GPU} down for "
        f"{{{{ $value | humanizePercentage }}}} of the last {window}.",
        ticket=f"{_slowed(_THERMAL, active, window)} > {config.throttle_share:g}",
        if_idle="[[Check fans, air or coolant of the node]], and compare with the temperatures of its other "
        "GPUs. RankwatchStraggler says what it costs the run.",
        for_seconds=config.confirm_seconds,
    )


def _pcie_degraded(config: RuleConfig) -> Fault:
    """An idle link slows itself down: the best of the window counts, and only of a GPU that works."""
    window = duration(config.step_window_seconds)

    def below(what: str) -> str:
        best = f"max by ({_GPU}) (max_over_time(rankwatch_gpu_pcie_{what}[{window}]))"
        return f"{best} < max by ({_GPU}) (rankwatch_gpu_pcie_{what}_max)"

    return Fault(
        alert=Alert.GPU_PCIE_DEGRADED,
        part=GPU,
        summary="The PCIe link of a GPU under load is slower than it could be.",
        happened=f"The PCIe link of {THE_GPU} has fewer lanes or a lower generation than GPU and slot "
        f"support, and had so all through the last {window} under load.",
        ticket=f"""
            ({below("width")} or {below("generation")})
            and on ({_GPU})
            avg_over_time(rankwatch_gpu_utilization_ratio[{window}]) > {config.pcie_load:g}
        """,
        if_idle="Copies to and from the GPU are slower: [[reseat the GPU or its riser at the next "
        "maintenance]].",
        for_seconds=config.confirm_seconds,
    )
