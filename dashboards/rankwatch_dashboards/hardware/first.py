"""The first screen of nodes: what is broken, since when, and which ranks work on which GPU."""

from __future__ import annotations

from rankwatch_alerts import HARDWARE_ALERTS, ON_CALL_UID, RuleConfig
from rankwatch_dashboards.alert_table import firing_alerts
from rankwatch_dashboards.board import FirstScreen
from rankwatch_dashboards.firing import RANK_OF_GPU, firing, named
from rankwatch_dashboards.links import TO_GPU, TO_NODE, TO_RANK, opens
from rankwatch_dashboards.panels import (
    GPU,
    NODE,
    NONE,
    ORANGE,
    RED,
    Column,
    Drawing,
    Panel,
    Query,
    most,
    verdict,
)

_ON_CALL = opens(ON_CALL_UID, "What is wrong now")
_NO_GPU = "the nodes have no GPU, or their agents are not scraped."
_RATE = "[$__rate_interval]"


def first_screen(config: RuleConfig) -> FirstScreen:
    """Counts of what is broken, the alerts, GPUs with their ranks, throttling, and errors of links."""
    broken = firing_alerts(
        config,
        "What is broken",
        NODE,
        alerts=HARDWARE_ALERTS,
        no_data="no part of these nodes has an alert.",
        of_hardware=True,
    )
    return FirstScreen(verdicts=_VERDICTS, main=broken, views=(_GPUS, _throttled(config), _LINK_ERRORS))


def _count(title: str, description: str, expression: str, *, no_data: str = _NO_GPU) -> Panel:
    return verdict(
        title, description, expression, steps=((1, RED),), mappings=NONE, no_data=no_data, links=(_ON_CALL,)
    )


_VERDICTS = (
    _count(
        "GPUs lost",
        "GPUs that answered the driver and do not any more. Above 0: RankwatchGpuFault (lost) names them.",
        f"count(rankwatch_gpu_up{{{NODE}}}) - sum(rankwatch_gpu_up{{{NODE}}})",
    ),
    _count(
        "GPUs missing",
        "GPUs on the PCI bus that do not answer. Above 0 for minutes: RankwatchGpuFault (missing) or a "
        "driver that hangs.",
        f"sum(rankwatch_gpus_expected{{{NODE}}}) - sum(rankwatch_gpus_visible{{{NODE}}})",
    ),
    _count(
        "GPUs to reset",
        "GPUs with a bad memory row that waits for a reset. Above 0: reset them when their runs have ended.",
        f"sum(rankwatch_gpu_row_remap_pending{{{NODE}}})",
    ),
    _count(
        "GPUs to replace",
        "GPUs whose SRAM errors passed the limit at which NVIDIA replaces them. Above 0: "
        "RankwatchGpuDegraded (sram_ecc_threshold).",
        f"sum(rankwatch_gpu_sram_ecc_threshold_exceeded{{{NODE}}})",
    ),
    _count(
        "RDMA ports down",
        "Ports that are not active, those without a cable included. More than usual: RankwatchLinkDown "
        "(rdma).",
        f"count(rankwatch_rdma_port_up{{{NODE}}}) - sum(rankwatch_rdma_port_up{{{NODE}}})",
        no_data="the nodes have no RDMA port, or their agents are not scraped.",
    ),
    _count(
        "Interfaces down",
        "Network interfaces that are down, unused ones included. More than usual: RankwatchLinkDown (nic).",
        f"count(rankwatch_network_up{{{NODE}}}) - sum(rankwatch_network_up{{{NODE}}})",
        no_data="the agents of these nodes are not scraped.",
    ),
)


_INDEX = (
    "* on (cluster, node, gpu) group_left (index) "
    f"group by (cluster, node, gpu, index) (rankwatch_gpu_info{{{NODE}}})"
)
"""Joins the index that people know a GPU by."""


_RANK = f"* on (cluster, node, gpu) group_left (run, rank) ({RANK_OF_GPU}{{{GPU}}} > bool 0)"
_ALERTS = firing(f"{GPU}, {named(HARDWARE_ALERTS)}")


def _of_gpu(series: str) -> Query:
    """By GPU, with the rank that works on it."""
    return Query(
        expression=most(f"max by (cluster, node, gpu) ({series}{{{GPU}}}) {_RANK} {_INDEX}", 64),
        legend="rank {{rank}} on {{node}} GPU {{index}}",
    )


_GPUS = Panel(
    title="GPUs and their ranks",
    description="The rank that works on each GPU, with utilisation, temperature and power: those with "
    "alerts first, then the least busy. Of one run, a GPU far below the others waits, is throttled or is "
    "broken.",
    no_data="no rank of a run works on these GPUs.",
    unit="short",
    drawing=Drawing.TABLE,
    sorted_by=("-D", "A"),
    queries=(
        _of_gpu("rankwatch_gpu_utilization_ratio"),
        _of_gpu("rankwatch_gpu_temperature_celsius"),
        _of_gpu("rankwatch_gpu_power_watts"),
        Query(
            expression=most(f"count by (cluster, node, gpu) ({_ALERTS}) {_RANK} {_INDEX}", 64),
            legend="rank {{rank}} on {{node}} GPU {{index}}",
        ),
    ),
    columns=(
        Column(name="rank", title="Rank", width=55, link=TO_RANK),
        Column(name="node", title="Node", link=TO_NODE),
        Column(name="index", title="GPU", width=55, link=TO_GPU),
        Column(name="A", title="Busy", unit="percentunit", width=65),
        Column(name="B", title="Heat", unit="celsius", width=65),
        Column(name="C", title="Power", unit="watt", width=70),
        Column(name="D", title="Alerts", width=60, steps=((1, RED),)),
    ),
)


_WHY = (
    f"label_replace(rate(rankwatch_gpu_throttle_seconds_total{{{GPU}}}{_RATE}), "
    '"why", "$1", "reason", "(?:[sh]w_)?(.+?)(?:_brake)?(?:_slowdown)?")'
)
"""Reasons without what is the same in most of them, so that their names are not cut: thermal, power_cap."""


def _throttled(config: RuleConfig) -> Panel:
    return Panel(
        title="Throttled GPUs",
        description="Share of time in which heat, hardware or power held the clocks down, the 10 worst. Red "
        "by heat or hardware: RankwatchGpuDegraded (throttled). A power cap is normal under full load.",
        no_data="nothing held a clock down, the nodes have no GPU, or their agents are not scraped.",
        unit="percentunit",
        drawing=Drawing.BARS,
        least=0,
        empty_text="No GPU is throttled.",
        steps=((config.throttle_share, RED),),
        queries=(
            Query(
                expression=most(f"max by (cluster, node, gpu, why) ({_WHY}) {_INDEX} > 0", 10),
                legend="{{node}} GPU {{index}} {{why}}",
            ),
        ),
        links=(TO_GPU,),
    )


_LINK_ERRORS = Panel(
    title="Errors of links",
    description="Errors per second of RDMA ports, NVLinks and network interfaces, the 10 worst. Sound links "
    "have none for hours; one port alone is a cable or a port.",
    no_data="the nodes have no such links, or their agents are not scraped.",
    unit="short",
    drawing=Drawing.BARS,
    least=0,
    steps=((0.001, ORANGE),),
    queries=(
        Query(
            expression=most(
                "sum by (cluster, node, device) "
                f"(rate(rankwatch_rdma_errors_total{{{NODE}}}{_RATE}) "
                f"or rate(rankwatch_network_receive_errors_total{{{NODE}}}{_RATE}))",
                5,
            ),
            legend="{{node}} {{device}}",
        ),
        Query(
            expression=most(
                "sum by (cluster, node, gpu) "
                f"(rate(rankwatch_gpu_nvlink_errors_total{{{GPU}}}{_RATE})) {_INDEX}",
                5,
            ),
            legend="{{node}} GPU {{index}} NVLink",
        ),
    ),
    links=(TO_NODE,),
)
