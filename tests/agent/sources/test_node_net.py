"""Where the network files of the node are found."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.sources.network import node_net


def test_the_first_process_of_the_node_is_asked_where_it_can_be(tmp_path: Path) -> None:
    """An agent in a pod's own network sees the node's."""
    (tmp_path / "1/net").mkdir(parents=True)
    (tmp_path / "1/net/dev").touch()
    assert node_net(tmp_path) == tmp_path / "1/net"


def test_where_it_cannot_be_read_the_agents_own_network_is_taken(tmp_path: Path) -> None:
    """A /proc that hides the processes of others."""
    assert node_net(tmp_path) == tmp_path / "net"
