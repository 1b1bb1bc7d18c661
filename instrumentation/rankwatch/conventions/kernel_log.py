"""Metrics of XID errors and of what the kernel log says about GPUs and NICs."""

from __future__ import annotations

from rankwatch.conventions.declaration import counter, gauge, info
from rankwatch.conventions.labels import Label

XIDS = (
    counter(
        "rankwatch_gpu_xid_errors_total",
        "1",
        (Label.GPU, Label.XID),
        "XID errors by code: the larger of the counts from NVML events and from the kernel log, so that an "
        "error that both report counts once. `gpu` is the PCI bus id while the UUID is unknown; `other` "
        "counts the codes beyond the first 64 of a GPU.",
    ),
    gauge(
        "rankwatch_gpu_xid_last_timestamp_seconds",
        "seconds",
        (Label.GPU, Label.XID),
        "Unix time of the last XID error of this code. From the kernel log it is boot time plus the log's "
        "own clock, which may be off by seconds after weeks.",
    ),
    counter(
        "rankwatch_gpu_xid_events_total",
        "1",
        (Label.GPU, Label.SEVERITY),
        "XID errors by severity (info, application, warning, critical): from the table, for NVLink 5 "
        "(144-150) from the kernel log. 0 before the first error, so that the first one is an increase.",
    ),
    counter(
        "rankwatch_gpu_xid_subcode_errors_total",
        "1",
        (Label.GPU, Label.XID, Label.SUBCODE, Label.ACTION),
        "NVLink 5 errors (XID 144-150) in the kernel log by the part of NVLink that the driver names, and by "
        "the action that NVIDIA's table gives for the registers in the line (reset_gpu, none, "
        "follow_recovery_action); `other` counts the subcodes that the table lacks.",
    ),
    info(
        "rankwatch_xid_info",
        (Label.XID, Label.SEVERITY, Label.ACTION, Label.MEANING),
        "What an XID code that has occurred means, and what to do; always 1.",
    ),
)

KERNEL_LOG = (
    counter(
        "rankwatch_kernel_log_events_total",
        "1",
        (Label.EVENT,),
        "Lines of the kernel log (/dev/kmsg) that tell of a known fault of GPU, NIC or host, by event; those "
        "since boot that the kernel still holds when the agent starts count too.",
    ),
    counter(
        "rankwatch_kernel_log_records_missed_total",
        "1",
        (),
        "Records of the kernel log that were overwritten before the agent had read them, by the gaps in "
        "their numbers.",
    ),
)
