"""Which interfaces are watched."""

from __future__ import annotations

from rankwatch_agent.sources.network import InterfaceChoice

NODE = ["lo", "eth0", "ib0", "docker0", "veth1a2b"]
PHYSICAL = frozenset({"eth0", "ib0"})


def test_interfaces_with_hardware_are_watched() -> None:
    """A node has a hundred virtual ones, whose bytes all pass a physical one."""
    assert InterfaceChoice().choose(NODE, PHYSICAL) == ["eth0", "ib0"]


def test_where_nothing_is_physical_all_but_the_loopback_are_watched() -> None:
    """A pod with its own network namespace sees only one end of a virtual pair."""
    assert InterfaceChoice().choose(["lo", "eth0"], frozenset()) == ["eth0"]


def test_globs_include_and_exclude() -> None:
    """Exclusion wins."""
    choice = InterfaceChoice(include=("ib*", "docker*"), exclude=("docker0",))
    assert choice.choose(NODE, PHYSICAL) == ["ib0"]
