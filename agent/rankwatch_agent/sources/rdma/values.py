"""What the files of an RDMA port say: counters, states, speed."""

from __future__ import annotations

from types import MappingProxyType

from rankwatch_agent.sources.kernel_files import parse_count

STATES = MappingProxyType({0: "nop", 1: "down", 2: "init", 3: "armed", 4: "active", 5: "active_defer"})
"""`enum ib_port_state` of the kernel."""
PHYSICAL_STATES = MappingProxyType(
    {
        1: "sleep",
        2: "polling",
        3: "disabled",
        4: "training",
        5: "link_up",
        6: "link_error_recovery",
        7: "phy_test",
    }
)
"""`enum ib_port_phys_state` of the kernel."""

_UNKNOWN = 2**64 - 1
"""All bits set: how a driver fills in what it does not know."""
_BYTES_PER_GIGABIT = 1_000_000_000 / 8


def parse_counter(text: bytes) -> int | None:
    """A counter; None for `N/A (no PMA)` and for all bits set."""
    if text.startswith(b"N/A"):
        return None
    value = parse_count(text.decode("ascii"))
    return value if value != _UNKNOWN else None


def parse_state(text: bytes) -> str | None:
    """`4: ACTIVE` as `active`; None for a state that the kernel's list does not hold."""
    return STATES.get(_number(text))


def parse_physical_state(text: bytes) -> str | None:
    """`5: LinkUp` as `link_up`; None for a state that the kernel's list does not hold."""
    return PHYSICAL_STATES.get(_number(text))


def parse_rate(text: bytes) -> float | None:
    """`400 Gb/sec (4X NDR)` in bytes per second; None where it is 0."""
    number, unit, *_ = (*text.split(), b"", b"")
    if unit != b"Gb/sec":
        raise ValueError(f"unexpected rate {text!r:.80}")
    gigabits = float(number)
    if not 0 <= gigabits < 1e9:
        raise ValueError(f"unexpected rate {text!r:.80}")
    return gigabits * _BYTES_PER_GIGABIT or None


def parse_word(text: bytes) -> str | None:
    """A name or version without the space around it; None where it is empty."""
    return text.decode("utf-8", "replace").strip() or None


def _number(text: bytes) -> int:
    return parse_count(text.partition(b":")[0].decode("ascii"))
