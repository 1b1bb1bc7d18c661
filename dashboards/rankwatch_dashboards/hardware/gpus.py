"""Rows: what do the GPUs do, what slows them down, which errors have they, and how are they linked?"""

from __future__ import annotations

from rankwatch_alerts import RuleConfig
from rankwatch_dashboards.links import TO_GPU
from rankwatch_dashboards.panels import GPU, NODE, Drawing, Panel, Query, most

_RATE = "[$__rate_interval]"
_ON_GPU = "{{node}} GPU {{index}}"


def _named(expression: str, *more: str) -> str:
    """The largest values by GPU and further labels, with the index that people know a GPU by."""
    labels = ", ".join(("cluster", "node", "gpu", *more))
    return most(
        f"max by ({labels}) ({expression}) * on (cluster, node, gpu) group_left (index) "
        f"group by (cluster, node, gpu, index) (rankwatch_gpu_info{{{NODE}}})"
    )


def _gauge(metric: str, *more: str) -> str:
    return _named(f"{metric}{{{GPU}}}", *more)


def _rate(counter: str, *more: str) -> str:
    return _named(f"rate({counter}{{{GPU}}}{_RATE})", *more)


def _panel(
    title: str, description: str, unit: str, expression: str, more: str = "", *, states: bool = False
) -> Panel:
    """One query by GPU; `more` ends the legend."""
    return Panel(
        title=title,
        description=description,
        unit=unit,
        drawing=Drawing.STATES if states else Drawing.LINES,
        queries=(Query(expression=expression, legend=f"{_ON_GPU} {more}".strip()),),
        links=(TO_GPU,),
    )


GPU_LOAD = (
    _panel(
        "Rank that works on the GPU",
        "Start of the rank on each GPU, by run and rank. A GPU without a band is idle; alerts on a GPU name "
        "the rank that is shown here.",
        "dateTimeAsIso",
        most(
            f"1000 * (gpu:rankwatch_rank_start_timestamp_seconds:latest{{{GPU}}} * on (cluster, node, gpu) "
            f"group_left (index) group by (cluster, node, gpu, index) (rankwatch_gpu_info{{{NODE}}}))",
            64,
        ),
        "run {{run}} rank {{rank}}",
        states=True,
    ),
    _panel(
        "GPU utilisation",
        "Share of time in which a kernel ran. Of GPUs of one run, one far below the others waits or is "
        "broken; 100 % says nothing of how much of the GPU is used.",
        "percentunit",
        _gauge("rankwatch_gpu_utilization_ratio"),
    ),
    _panel(
        "Activity by unit",
        "Share of time in which a unit was active (Hopper and newer): tensor shows what training uses. Full "
        "utilisation with no tensor activity means kernels that wait.",
        "percentunit",
        _gauge("rankwatch_gpu_activity_ratio", "unit"),
        "{{unit}}",
    ),
    _panel(
        "Device memory in use",
        "Share of device memory in use. Near 100 % an allocation fails next; a rank that grows while its "
        "peers do not holds tensors that it should free.",
        "percentunit",
        _named(f"rankwatch_gpu_memory_used_bytes{{{GPU}}} / rankwatch_gpu_memory_total_bytes{{{GPU}}}"),
    ),
    _panel(
        "Processes on the GPU",
        "Processes with a compute context. More than one where a single rank should be: a left-over process "
        "takes memory and time from the run.",
        "short",
        _gauge("rankwatch_gpu_processes"),
    ),
    _panel(
        "Encoder and decoder load",
        "Share of time in which video is encoded or decoded: data loading on the GPU. At 100 % the decoder "
        "is what the run waits for.",
        "percentunit",
        _gauge("rankwatch_gpu_video_utilization_ratio", "unit"),
        "{{unit}}",
    ),
)


def gpu_heat(config: RuleConfig) -> tuple[Panel, ...]:
    """Panels whose threshold is that of the alert."""
    return (
        Panel(
            title="Throttled time by reason",
            description="Share of time in which the clocks were held down. Above the line by heat or "
            "hardware: RankwatchGpuDegraded (throttled), by the brake: RankwatchGpuDegraded (power_brake). "
            "A power cap is normal.",
            unit="percentunit",
            threshold=config.throttle_share,
            queries=(
                Query(
                    expression=_rate("rankwatch_gpu_throttle_seconds_total", "reason"),
                    legend=f"{_ON_GPU} {{{{reason}}}}",
                ),
            ),
            links=(TO_GPU,),
        ),
        *_HEAT,
    )


_HEAT = (
    _panel(
        "Temperature",
        "Temperature by sensor, the hottest 20. One GPU ten degrees above its neighbours has a bad cooler; a "
        "whole node has bad fans or air.",
        "celsius",
        _gauge("rankwatch_gpu_temperature_celsius", "sensor"),
        "{{sensor}}",
    ),
    _panel(
        "Degrees left before it slows down",
        "Smallest margins to the temperature at which the GPU slows down. At 0 it does: "
        "RankwatchGpuDegraded (throttled) is next.",
        "celsius",
        f"bottomk(20, max by (cluster, node, gpu) (rankwatch_gpu_temperature_margin_celsius{{{GPU}}}) "
        f"* on (cluster, node, gpu) group_left (index) group by (cluster, node, gpu, index) "
        f"(rankwatch_gpu_info{{{NODE}}}))",
    ),
    _panel(
        "Power, of its limit",
        "Power drawn as a share of the enforced limit. All GPUs of a run should look alike; one below waits "
        "or is throttled.",
        "percentunit",
        _named(f"rankwatch_gpu_power_watts{{{GPU}}} / rankwatch_gpu_power_limit_watts{{{GPU}}}"),
    ),
    _panel(
        "Clocks, of the highest",
        "Present clock as a share of the highest, the slowest 20. One GPU below its peers under the same "
        "load makes its rank a straggler.",
        "percentunit",
        "bottomk(20, max by (cluster, node, gpu, clock) "
        f"(rankwatch_gpu_clock_hertz{{{GPU}}} / rankwatch_gpu_clock_max_hertz{{{GPU}}}) "
        f"* on (cluster, node, gpu) group_left (index) group by (cluster, node, gpu, index) "
        f"(rankwatch_gpu_info{{{NODE}}}))",
        "{{clock}}",
    ),
    _panel(
        "Fans",
        "Speed of each fan as a share of its highest, the fastest 20. At 100 % with a hot GPU: air is "
        "blocked or too warm. Boards that the server cools have none.",
        "percentunit",
        _gauge("rankwatch_gpu_fan_speed_ratio", "fan"),
        "fan {{fan}}",
    ),
    _panel(
        "Performance state",
        "P0 is the fastest. Above 0 on a GPU under load, the driver holds it down: see the reasons beside "
        "this panel.",
        "short",
        _gauge("rankwatch_gpu_performance_state"),
    ),
)

GPU_FAULTS = (
    _panel(
        "XID errors",
        "Errors that the driver reported, per second and code. RankwatchGpuFault (xid) says what a code "
        "means; one code on all GPUs is the application, on one GPU it is hardware.",
        "short",
        _rate("rankwatch_gpu_xid_errors_total", "xid"),
        "XID {{xid}}",
    ),
    _panel(
        "ECC errors",
        "Memory errors per second. Uncorrected ones end the process (RankwatchGpuFault: ecc_uncorrected); a "
        "high rate of corrected ones makes driver calls slow.",
        "short",
        _rate("rankwatch_gpu_ecc_errors_total", "kind", "scope"),
        "{{kind}} {{scope}}",
    ),
    _panel(
        "Remapped rows",
        "Memory rows that were replaced since the GPU was made. Growing by uncorrected errors: the GPU wears "
        "out.",
        "short",
        _gauge("rankwatch_gpu_remapped_rows", "kind"),
        "{{kind}}",
    ),
    _panel(
        "Banks by spare rows left",
        "Memory banks by what is left to replace bad rows with. Any with none: RankwatchGpuDegraded "
        "(sram_ecc_threshold).",
        "short",
        _gauge("rankwatch_gpu_row_remap_banks", "availability"),
        "{{availability}}",
    ),
    Panel(
        title="Must be replaced",
        description="1 where SRAM errors passed NVIDIA's limit or a row could not be replaced: "
        "RankwatchGpuDegraded (sram_ecc_threshold). 0 is sound.",
        unit="short",
        queries=(
            Query(expression=_gauge("rankwatch_gpu_sram_ecc_threshold_exceeded"), legend=f"{_ON_GPU} SRAM"),
            Query(expression=_gauge("rankwatch_gpu_row_remap_failed"), legend=f"{_ON_GPU} row"),
        ),
        links=(TO_GPU,),
    ),
    _panel(
        "What the driver asks for",
        "The recovery action of each GPU. Anything but none raises RankwatchGpuFault (needs_reset): the GPU "
        "cannot be relied on until it is done.",
        "short",
        _gauge("rankwatch_gpu_recovery_action", "action"),
        "{{action}}",
        states=True,
    ),
)

GPU_LINKS = (
    _panel(
        "NVLinks that are down",
        "Ports of a GPU without a link. A number above that of its neighbours: RankwatchGpuFault "
        "(nvlink_down). Boards without a bridge have all ports down.",
        "short",
        _named(f"rankwatch_gpu_nvlinks{{{GPU}}} - rankwatch_gpu_nvlinks_active{{{GPU}}}"),
    ),
    _panel(
        "NVLink traffic",
        "Bytes per second over all NVLinks of a GPU. Flat at 0 during collectives of one node: they take the "
        "way over PCIe.",
        "Bps",
        _rate("rankwatch_gpu_nvlink_bytes_total", "direction"),
        "{{direction}}",
    ),
    _panel(
        "NVLink errors",
        "Errors per second by kind. A few replays are normal; recoveries are not: RankwatchGpuDegraded "
        "(nvlink_errors).",
        "short",
        _rate("rankwatch_gpu_nvlink_errors_total", "kind"),
        "{{kind}}",
    ),
    _panel(
        "State of the NVLink fabric",
        "The probe of the fabric on boards with NVSwitch. Anything but completed: NCCL fails on this node; "
        "look at the fabric manager.",
        "short",
        _gauge("rankwatch_gpu_fabric_state", "state"),
        "{{state}}",
        states=True,
    ),
    _panel(
        "PCIe link, of its best",
        "Width times generation as a share of what GPU and slot support, the worst 20. It falls when the GPU "
        "is idle; below 1 under load: RankwatchGpuDegraded (pcie).",
        "percentunit",
        "bottomk(20, max by (cluster, node, gpu) "
        f"(rankwatch_gpu_pcie_width{{{GPU}}} / rankwatch_gpu_pcie_width_max{{{GPU}}} "
        f"* rankwatch_gpu_pcie_generation{{{GPU}}} / rankwatch_gpu_pcie_generation_max{{{GPU}}}) "
        f"* on (cluster, node, gpu) group_left (index) group by (cluster, node, gpu, index) "
        f"(rankwatch_gpu_info{{{NODE}}}))",
    ),
    _panel(
        "PCIe packets sent again",
        "Replays per second. Above 0 for long the link is bad: riser, cable or slot; collectives through "
        "this GPU's switch are slow.",
        "short",
        _rate("rankwatch_gpu_pcie_replays_total"),
    ),
)
