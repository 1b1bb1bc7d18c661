"""The dashboard of nodes and their hardware, which alerts on hardware link to."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import HARDWARE_UID, RuleConfig
from rankwatch_dashboards.board import Row, Rows, any_cluster, board, chosen, several
from rankwatch_dashboards.hardware.first import first_screen
from rankwatch_dashboards.hardware.gpus import GPU_FAULTS, GPU_LINKS, GPU_LOAD, gpu_heat
from rankwatch_dashboards.hardware.nodes import FAULTS, host, network
from rankwatch_dashboards.panels import NODE

ROWS: Rows = (
    Row(
        "Is anything broken?",
        lambda _: FAULTS,
        "no part of these nodes reports a fault, or the agents are not scraped.",
    ),
    Row(
        "What do the GPUs do?",
        lambda _: GPU_LOAD,
        "the GPU or its driver does not report it, or the node has none.",
    ),
    Row("Are they slowed down?", gpu_heat, "the GPU or its driver does not report it, or the node has none."),
    Row(
        "Errors of GPUs",
        lambda _: GPU_FAULTS,
        "the GPU or its driver does not report it, or the node has none.",
    ),
    Row(
        "Links of GPUs",
        lambda _: GPU_LINKS,
        "the GPU or its driver does not report it, or the node has none.",
    ),
    Row("RDMA and network", network, "the nodes have no such part, or their agents are not scraped."),
    Row("Host and disks", host, "the nodes have no such part, or their agents are not scraped."),
)


def hardware(config: RuleConfig) -> dashboard.Dashboard:
    """The builder of the dashboard of nodes."""
    return board(
        "Rankwatch / Node and hardware",
        HARDWARE_UID,
        "Hardware of nodes: GPUs, NVLink, RDMA ports, network interfaces, host, and which rank uses them.",
        variables=(
            any_cluster("label_values(rankwatch_agent_info, cluster)"),
            several(chosen("node", "Node", 'label_values(rankwatch_agent_info{cluster=~"$cluster"}, node)')),
            several(chosen("gpu", "GPU", f"label_values(rankwatch_gpu_info{{{NODE}}}, gpu)")),
        ),
        events=NODE,
        screen=first_screen(config),
        rows=ROWS,
        config=config,
    )
