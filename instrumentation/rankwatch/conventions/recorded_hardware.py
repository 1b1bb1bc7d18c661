"""Recorded series on which run works on which GPU and node, recent XID errors, and space left to runs."""

from __future__ import annotations

from rankwatch.conventions.declaration import RecordedSeries, recorded
from rankwatch.conventions.labels import Label

_NODE = (Label.CLUSTER, Label.NODE)
_LATEST = "Unix time at which the run started there"

RECORDED_HARDWARE: tuple[RecordedSeries, ...] = (
    recorded(
        "node:rankwatch_host_clock_ahead_seconds:max",
        _NODE,
        "How far the node's clock is ahead of that of Prometheus, and below 0 behind it; at most one scrape "
        "too much.",
    ),
    recorded(
        "run_node:rankwatch_rank_start_timestamp_seconds:recent",
        (*_NODE, Label.RUN),
        "Last start of ranks of the run on the node, where one of them ran within the last minutes and not "
        "all have finished: what a fault could hit.",
    ),
    recorded(
        "rank_gpu:rankwatch_rank_start_timestamp_seconds:recent",
        (*_NODE, Label.GPU, Label.RUN, Label.RANK),
        "Start of each rank that has worked on the GPU or MIG instance lately and has not finished.",
    ),
    recorded(
        "gpu:rankwatch_rank_start_timestamp_seconds:latest",
        (*_NODE, Label.GPU, Label.RUN, Label.RANK),
        "Start of the rank that works on the GPU; of several the one that started last. A rank on a MIG "
        "instance works on its GPU. Without `rank` where no rank on the node names its GPU.",
    ),
    recorded(
        "node:rankwatch_rank_start_timestamp_seconds:latest",
        (*_NODE, Label.RUN),
        f"{_LATEST}; of several runs on the node the one that started last.",
    ),
    recorded(
        "node:rankwatch_rank_start_timestamp_seconds:latest_on_many_nodes",
        (*_NODE, Label.RUN),
        f"{_LATEST}; only runs on several nodes, which need the network.",
    ),
    recorded(
        "node:rankwatch_node_user:info",
        (*_NODE, Label.RUN),
        "1 for each node, with the run of which a rank started there last; no run where none did.",
    ),
    recorded(
        "node:rankwatch_network_user:info",
        (*_NODE, Label.RUN),
        "The same; only runs on several nodes, which need the network.",
    ),
    recorded(
        "device:rankwatch_network_down:bool",
        (*_NODE, Label.DEVICE),
        "1 for an interface that is down although it was in use, or is on most other nodes.",
    ),
    recorded(
        "gpu:rankwatch_gpu_xid_last_timestamp_seconds:recent",
        (*_NODE, Label.GPU, Label.XID, Label.SEVERITY, Label.ACTION, Label.MEANING),
        "Unix time of the last XID error of a code, with what the table says of it; only for some minutes.",
    ),
    recorded(
        "run_path:rankwatch_run_mount_available_bytes:min",
        (Label.CLUSTER, Label.RUN, Label.PATH),
        "Bytes left on a file system of a run, on the node where it is fullest: its history is one series, "
        "however many nodes the run has.",
    ),
)
