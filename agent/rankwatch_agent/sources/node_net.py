"""Where the kernel tells of the node's network, whatever network namespace the agent itself is in."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.sources.kernel_files import EXHAUSTED


def node_net(procfs: Path) -> Path:
    """`procfs`/1/net: the network of the node's first process, also for an agent in a pod's namespace.

    `procfs`/net, the reader's own network, where that one cannot be read.
    """
    first = procfs / "1" / "net"
    try:
        with (first / "dev").open("rb"):
            return first
    except OSError as error:
        if error.errno in EXHAUSTED:  # not the other network for want of a file descriptor
            return first
        return procfs / "net"
