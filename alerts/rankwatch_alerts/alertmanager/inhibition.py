"""Which alert holds back which: a cause silences its symptoms.

The sources keep firing as long as their victims (`keep_firing_seconds`), so that no victim notifies in the
gap after its cause.
"""

from __future__ import annotations

from rankwatch_alerts.rules import (
    HARDWARE_ALERTS,
    KILLED_WHILE_WAITING,
    NODE_UNSEEN,
    RANK_KNOWN,
    RANK_UNKNOWN,
    Alert,
)

_OF_A_RUN = 'run=~".+"'
"""Alertmanager takes two absent labels as equal: without this matcher, an alert of any run would inhibit
alerts that have no run."""
_OF_A_NODE = 'node=~".+"'


def inhibit_rules() -> list[dict[str, list[str]]]:
    """A lost node explains all that its run and its agent raise, a lost rank explains a stall, and a run that
    stands still has no pace to judge."""
    of_run = ["cluster", "run"]
    stalls = (Alert.RUN_STALLED, Alert.COLLECTIVES_DESYNCHRONISED)
    slow = (
        Alert.STRAGGLER,
        Alert.SLOW_STAGE,
        Alert.UNEQUAL_BATCHES,
        Alert.SLOW_DATA_LOADING,
        Alert.NETWORK_DEGRADED,
        Alert.JITTER,
    )
    judged_by_pace = (
        *slow,
        Alert.LOSS_DIVERGING,
        Alert.CHECKPOINT_STALE,
        Alert.CHECKPOINT_OVERLAP,
        Alert.CHECKPOINT_WRITER_SLOW,
        Alert.CHECKPOINT_SLOW,
        Alert.STARTUP_SLOW,
        Alert.RUN_BEHIND_PLAN,
        Alert.GPUS_IDLE,
        Alert.UTILISATION_LOW,
        Alert.STEP_TIME_REGRESSED,
    )
    ends = (Alert.RUN_FAILED, Alert.RUN_CRASH_LOOPING)
    return [
        _inhibit(
            (Alert.NODE_LOST,), (*stalls, *judged_by_pace, Alert.RANK_LOST, Alert.TELEMETRY_ABSENT), of_run
        ),
        *_inhibited_by_nodes(),
        _inhibit((Alert.NODE_LOST, Alert.RANK_LOST), (Alert.RUN_FAILED,), of_run),
        _inhibit((Alert.RUN_CRASH_LOOPING,), (Alert.RUN_FAILED, Alert.RANK_LOST), of_run),
        _inhibit((Alert.RANK_LOST,), (*stalls, *judged_by_pace), of_run, f'reason!="{KILLED_WHILE_WAITING}"'),
        _inhibit((*stalls, *ends), judged_by_pace, of_run),
        {
            "source_matchers": [f'alertname=~"{"|".join(stalls)}"', f'reason="{RANK_KNOWN}"', _OF_A_RUN],
            "target_matchers": [f'alertname=~"{"|".join(stalls)}"', f'reason="{RANK_UNKNOWN}"', _OF_A_RUN],
            "equal": of_run,
        },
        _inhibit(slow, (Alert.STEP_TIME_REGRESSED, Alert.UTILISATION_LOW), of_run),
        _inhibit((Alert.GPUS_IDLE,), (Alert.UTILISATION_LOW,), of_run),
        _inhibit((Alert.LOSS_NON_FINITE,), (Alert.LOSS_DIVERGING,), of_run),
        _inhibit(
            (Alert.LOSS_NON_FINITE, Alert.LOSS_DIVERGING), (Alert.NORM_EXPLODING, Alert.LOSS_PLATEAU), of_run
        ),
        {
            "source_matchers": [f'alertname="{Alert.STRAGGLER}"', 'severity="critical"', _OF_A_RUN],
            "target_matchers": [f'alertname="{Alert.STRAGGLER}"', 'severity="warning"', _OF_A_RUN],
            "equal": [*of_run, "rank"],
        },
        *_hardware_inhibit_rules(),
    ]


def _inhibited_by_nodes() -> list[dict[str, list[str]]]:
    """Alerts on the agent of a node that is lost or not seen; of all agents where most nodes are lost."""
    of_agents = [f'alertname=~"{Alert.TELEMETRY_ABSENT}|{Alert.COLLECTOR_FAILING}"', 'run=""']
    of_node = {"target_matchers": [*of_agents, _OF_A_NODE], "equal": ["cluster", "node"]}
    return [
        {"source_matchers": [f'alertname="{Alert.NODE_LOST}"', _OF_A_NODE], **of_node},
        {
            "source_matchers": [
                f'alertname="{Alert.TELEMETRY_ABSENT}"',
                f'reason="{NODE_UNSEEN}"',
                _OF_A_NODE,
            ],
            **of_node,
        },
        {
            "source_matchers": [f'alertname="{Alert.NODE_LOST}"', 'node=""'],
            "target_matchers": [f'alertname="{Alert.TELEMETRY_ABSENT}"', 'reason="agent_down"'],
            "equal": ["cluster"],
        },
    ]


def _hardware_inhibit_rules() -> list[dict[str, list[str]]]:
    """Of one fault of hardware only the alert that says most: GPU lost over its XID over GPUs missing.

    A fault that ends a run explains why it stands still or failed, and a page on a GPU why its rank is slow.
    """
    of_node, of_gpu, of_device = (
        ["cluster", "node"],
        ["cluster", "node", "gpu"],
        ["cluster", "node", "device"],
    )
    lost, hung = (Alert.GPU_LOST,), (Alert.GPU_DRIVER_UNRESPONSIVE,)
    memory, link = (Alert.GPU_ECC_UNCORRECTED,), (Alert.NVLINK_DOWN,)
    consequences = (Alert.GPU_XID, Alert.GPU_NEEDS_RESET, *link, Alert.NVLINK_ERRORS)
    stalls = (Alert.RUN_STALLED, Alert.COLLECTIVES_DESYNCHRONISED, Alert.STRAGGLER)
    port, of_run = [*of_device, "port"], ["cluster", "run"]
    of_hardware = f'alertname=~"{"|".join(HARDWARE_ALERTS)}"'
    same_part = ["alertname", "reason", *of_gpu, "xid", "device", "port", "path"]
    ends = (Alert.RANK_LOST, Alert.RUN_FAILED)
    on_gpu = (*lost, *hung, *memory, Alert.GPU_XID, Alert.GPU_NEEDS_RESET, Alert.GPU_POWER_BRAKE, *link)
    on_rank = (Alert.STRAGGLER, Alert.CHECKPOINT_WRITER_SLOW)
    return [
        _inhibit((*lost, *hung, *memory), (*stalls, *ends), of_run),
        _inhibit(on_gpu, on_rank, [*of_run, "rank"], 'severity="critical"', of="rank"),
        _inhibit(lost, consequences, of_gpu, of="gpu"),
        _inhibit((*lost, *hung), (Alert.GPUS_MISSING,), of_node, of="node"),
        _inhibit(hung, (Alert.COLLECTOR_FAILING,), of_node, of="node", only=('collector="gpu"',)),
        _inhibit(memory, (Alert.GPU_XID,), of_gpu, of="gpu", only=('xid=~"48|63|64|94|95|171|172"',)),
        _inhibit(link, (Alert.NVLINK_ERRORS,), of_gpu, of="gpu"),
        _inhibit(link, (Alert.GPU_XID,), of_node, of="node", only=('xid=~"74|14[4-9]|150"',)),
        _inhibit((Alert.GPU_POWER_BRAKE,), (Alert.GPU_THROTTLED,), of_gpu, of="gpu"),
        _inhibit((Alert.RDMA_LINK_DOWN,), (Alert.RDMA_LINK_FLAPPING, Alert.RDMA_ERRORS), port, of="device"),
        _inhibit((Alert.RDMA_LINK_DOWN,), (Alert.RDMA_CONGESTION,), of_device, of="device"),
        _inhibit(
            (Alert.CHECKPOINT_DISK_FILLING,),
            (Alert.CHECKPOINT_SPACE_SHORT,),
            [*of_run, "path"],
            'severity="critical"',
            of="path",
        ),
        _inhibit((Alert.NIC_DOWN,), (Alert.NIC_ERRORS,), of_device, of="device"),
        {
            # A page over the ticket of the same part, while one follows the other.
            "source_matchers": [of_hardware, 'severity="critical"'],
            "target_matchers": [of_hardware, 'severity="warning"'],
            "equal": same_part,
        },
        {
            # The alert that names the run over the one from before the run began, or from after its end.
            "source_matchers": [of_hardware, _OF_A_RUN],
            "target_matchers": [of_hardware, 'run=""'],
            "equal": same_part,
        },
    ]


def _inhibit(
    sources: tuple[Alert, ...],
    targets: tuple[Alert, ...],
    equal: list[str],
    *of_source: str,
    of: str = "run",
    only: tuple[str, ...] = (),
) -> dict[str, list[str]]:
    """`of` is a label that both have, `of_source` and `only` are further matchers of source and target."""
    present = f'{of}=~".+"'
    return {
        "source_matchers": [f'alertname=~"{"|".join(sources)}"', *of_source, present],
        "target_matchers": [f'alertname=~"{"|".join(targets)}"', present, *only],
        "equal": equal,
    }
