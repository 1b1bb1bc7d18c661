"""What alerts on hardware read: rank of each GPU, run of each node, recent XID errors, space left to runs."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import RecordingRule, duration, recorded

RANK_OF_GPU = "gpu:rankwatch_rank_start_timestamp_seconds:latest"
RUN_OF_NODE = "node:rankwatch_rank_start_timestamp_seconds:latest"
RUN_OF_NETWORK = "node:rankwatch_rank_start_timestamp_seconds:latest_on_many_nodes"
USER_OF_NODE = "node:rankwatch_node_user:info"
USER_OF_NETWORK = "node:rankwatch_network_user:info"
"""Of every node: with the run that uses it, or without one."""
NETWORK_DOWN = "device:rankwatch_network_down:bool"
CLOCK_AHEAD = "node:rankwatch_host_clock_ahead_seconds:max"
CHECKPOINT_SPACE = "run_path:rankwatch_checkpoint_space:saves"
MOUNT_AVAILABLE = "run_path:rankwatch_run_mount_available_bytes:min"
RECENT_XID = "gpu:rankwatch_gpu_xid_last_timestamp_seconds:recent"
_NETWORK_TYPES = "nfs.*|lustre|ceph.*|gpfs|beegfs.*|wekafs|fuse.*|cifs|glusterfs|9p|virtiofs"
_RECENT = "run_node:rankwatch_rank_start_timestamp_seconds:recent"
_DONE = 'state=~"finished|preempted"'
_RECENT_ON_GPU = "rank_gpu:rankwatch_rank_start_timestamp_seconds:recent"


def hardware_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """What has just failed."""
    return (
        recorded(NETWORK_DOWN, _network_down(config)),
        recorded(RECENT_XID, _recent_xid(config)),
    )


def user_rules(config: RuleConfig) -> tuple[RecordingRule, ...]:
    """One rank for each GPU and one run for each node: an alert joins exactly one, whatever they share.

    A fault mostly ends the run that it hits, so the rules remember it for as long as an event alerts.
    """
    window = duration(config.event_window_seconds)
    return (
        recorded(
            _RECENT,
            f"""
                max by (cluster, node, run) (
                  last_over_time(rankwatch_node_last_start_timestamp_seconds[{window}])
                )
                unless on (cluster, node, run)
                (
                  rankwatch_node_ranks{{{_DONE}}}
                  unless on (cluster, node, run)
                  rankwatch_node_ranks{{{_DONE.replace("=~", "!~")}}}
                )
            """,
        ),
        recorded(
            _RECENT_ON_GPU,
            f"""
                max by (cluster, node, gpu, run, rank) (
                  last_over_time(rankwatch_rank_gpu_start_timestamp_seconds[{window}])
                )
                unless on (cluster, node, run, rank)
                rankwatch_rank_state{{{_DONE}}}
            """,
        ),
        recorded(RUN_OF_NODE, _run_of_node()),
        recorded(RANK_OF_GPU, _rank_of_gpu(window)),
        recorded(
            RUN_OF_NETWORK,
            _run_of_node(f"""
                  and on (cluster, run)
                  (count by (cluster, run) ({_RECENT}) > 1)"""),
        ),
        recorded(USER_OF_NODE, _user_or_none(RUN_OF_NODE, f"last_over_time(rankwatch_agent_info[{window}])")),
        recorded(USER_OF_NETWORK, _user_or_none(RUN_OF_NETWORK, USER_OF_NODE)),
        recorded(
            CLOCK_AHEAD,
            "max by (cluster, node) (rankwatch_host_time_seconds - timestamp(rankwatch_host_time_seconds))",
        ),
        recorded(CHECKPOINT_SPACE, _checkpoint_space()),
        recorded(MOUNT_AVAILABLE, "min by (cluster, run, path) (rankwatch_run_mount_available_bytes)"),
    )


def _checkpoint_space() -> str:
    """How many more checkpoints fit: on a node what its own ranks wrote, on a network file system what all
    did."""
    written = "max by (cluster, run, node) (rankwatch_node_checkpoint_bytes)"
    available = "rankwatch_filesystem_available_bytes"
    return f"""
        min by (cluster, run, path) (
          (
            {available}
            and on (cluster, node, path)
            rankwatch_run_mount_info{{type=~"{_NETWORK_TYPES}"}}
          )
          / on (cluster, node) group_left (run)
          (
            ({RUN_OF_NODE} > bool 0)
            * on (cluster, run) group_left ()
            (sum by (cluster, run) ({written}) > 0)
          )
          or on (cluster, node, path)
          {available}
          / on (cluster, node) group_left (run)
          (
            {written} > 0
            and on (cluster, run, node)
            {RUN_OF_NODE}
          )
        )
    """


def _rank_of_gpu(window: str) -> str:
    """A rank on a MIG instance names the instance: the GPU is found by its UUID.

    Where no rank on the node names a GPU, each GPU counts as used by the run on the node.
    """
    return f"""
        topk by (cluster, node, gpu) (
          1,
          {_RECENT_ON_GPU}{{gpu!~"MIG-.+"}}
          or
          max by (cluster, node, gpu, run, rank) (
            label_replace({_RECENT_ON_GPU}{{gpu=~"MIG-.+"}}, "mig", "$1", "gpu", "(.+)")
            * on (cluster, node, mig) group_left (gpu)
            group by (cluster, node, mig, gpu) (last_over_time(rankwatch_gpu_mig_info[{window}]))
          )
          or
          label_replace(
            group by (cluster, node, gpu) (last_over_time(rankwatch_gpu_up[{window}]))
            * on (cluster, node) group_left (run)
            ({RUN_OF_NODE} unless on (cluster, node) {_RECENT_ON_GPU}),
            "rank", "", "", ""
          )
        )
    """


def _run_of_node(only: str = "") -> str:
    return f"""
        topk by (cluster, node) (
          1,
          max by (cluster, node, run) (
            {_RECENT}{only}
          )
        )
    """


def _user_or_none(user: str, nodes: str) -> str:
    return f"""
        ({user} > bool 0)
        or on (cluster, node)
        label_replace(group by (cluster, node) ({nodes}), "run", "", "", "")
    """


def _network_down(config: RuleConfig) -> str:
    """Down, and known to be in use: it was up not long ago, or is up on most other nodes.

    RDMA ports have an alert of their own, which their interfaces need not repeat.
    """
    window, lookback = duration(config.absence_window_seconds), duration(config.absence_lookback_seconds)
    device = "cluster, node, device"
    up = f"max by ({device}) (last_over_time(rankwatch_network_up[{window}]))"
    return f"""
        group by ({device}) (
          {up} == 0
          and on ({device})
          (
            max_over_time(rankwatch_network_up[{lookback}]) == 1
            or on ({device})
            {up}
            and on (cluster, device)
            avg by (cluster, device) ({up}) > 0.5
          )
          unless on ({device})
          last_over_time(rankwatch_network_info{{rdma_device!=""}}[{lookback}])
        )
    """


def _recent_xid(config: RuleConfig) -> str:
    """By the time of the last error: a counter's first value, or one after a restart, tells nothing new.

    topk, because a code has both its entries for a while after the table was changed.
    """
    window = duration(config.event_window_seconds)
    return f"""
        (
          max by (cluster, node, gpu, xid) (max_over_time(rankwatch_gpu_xid_last_timestamp_seconds[{window}]))
          > time() - {config.event_window_seconds:g}
        )
        * on (cluster, node, xid) group_left (severity, action, meaning)
        topk by (cluster, node, xid) (1, last_over_time(rankwatch_xid_info[{window}]))
    """
