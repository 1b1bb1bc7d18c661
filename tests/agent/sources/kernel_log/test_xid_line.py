"""XID errors in lines of the kernel log."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.kernel_log.collector import SAME_FALL_SECONDS, Falls
from rankwatch_agent.sources.kernel_log.lines import XidLine, parse_identity, parse_xid

BUS = "0000:3b:00.0"
REGISTERS = "(0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
            XidLine(BUS, 79, None, False),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>, Ch 00000010, intr 00000000.",
            XidLine(BUS, 31, None, False),
        ),
        (
            "NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).",
            XidLine(BUS, 94, None, False),
        ),
        ("NVRM: Xid (0000:3b:00): 48, An uncorrectable error", XidLine(BUS, 48, None, False)),
        (
            f"NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 {REGISTERS}",
            XidLine("0018:01:00.0", 145, "warning", False),
        ),
        (
            f"NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 {REGISTERS}",
            XidLine("0018:01:00.0", 149, "critical", False),
        ),
        (
            f"NVRM: Xid (PCI:0018:01:00): 149, pid='<unknown>', name=<unknown>, NETIR Fatal XC0 i0 Link -1 "
            f"{REGISTERS}",
            XidLine("0018:01:00.0", 149, "critical", False),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 150, something new", XidLine(BUS, 150, None, False)),
        (
            "NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 14(0x100000, 0x0)",
            XidLine(BUS, 74, None, False),
        ),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", XidLine(BUS, 79, None, True)),
        ("NVRM: GPU at PCI:0000:3b:00 has fallen off the bus.", XidLine(BUS, 79, None, True)),
        (
            "NVRM: The NVIDIA GPU 0000:3b:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has NVRM: "
            "fallen off the bus and is not responding to commands.",
            XidLine(BUS, 79, None, True),
        ),
    ],
)
def test_an_error_has_an_address_a_code_and_a_severity_of_its_own(text: str, expected: XidLine) -> None:
    """The severity only where the driver judges each occurrence."""
    assert parse_xid(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:3b:00): 0, nothing",
        "NVRM: Xid (PCI:garbage): 79, x",
        "NVRM: Xid (PCI:0000:3b:00): 123456, too long",
        "Xid (PCI:0000:3b:00): 79, not from the driver",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: GPU at PCI:0000:3b:00: GPU-8f1c6e0a-0000-1111-2222-333344445555",
    ],
)
def test_other_lines_hold_no_error(text: str) -> None:
    """No code 0, no address that is none, no switch."""
    assert parse_xid(text) is None


def test_the_driver_names_the_gpu_at_an_address() -> None:
    """Once, before its first error: the log alone then leads to the UUID."""
    uuid = "GPU-8f1c6e0a-0000-1111-2222-333344445555"
    assert parse_identity(f"NVRM: GPU at PCI:0000:3B:00: {uuid}") == (BUS, uuid)
    assert parse_identity("NVRM: GPU at PCI:0000:3B:00: GPU-short") is None


def fall(*, implied: bool, bus_id: str = BUS) -> XidLine:
    return XidLine(bus_id, 79, None, implied)


def test_a_gpu_that_several_lines_say_has_fallen_fell_once() -> None:
    """In either order, and for as long as the driver repeats it."""
    falls = Falls()
    assert falls.counts(fall(implied=False), 100.0)
    assert not falls.counts(fall(implied=True), 100.1)
    assert falls.counts(fall(implied=True, bus_id="0000:5c:00.0"), 100.2)
    assert not falls.counts(fall(implied=False, bus_id="0000:5c:00.0"), 101.0)
    for second in range(101, 400, 50):
        assert not falls.counts(fall(implied=True), second)


def test_a_gpu_falls_again_later_or_by_two_codes() -> None:
    """Each line with a code is an error of its own; so is a fall after the machine recovered."""
    falls = Falls()
    assert falls.counts(fall(implied=False), 100.0)
    assert falls.counts(fall(implied=False), 101.0)
    assert falls.counts(fall(implied=True), 101.0 + SAME_FALL_SECONDS)
    other = XidLine(BUS, 13, None, False)
    assert all(falls.counts(other, 100.0) for _ in range(3))
