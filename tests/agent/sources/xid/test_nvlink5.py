"""The action for an NVLink 5 error, by its subcode and registers."""

from __future__ import annotations

import pytest

from rankwatch_agent.sources.kernel_log_lines import parse_nvlink5
from rankwatch_agent.sources.xid import Nvlink5Error, load_rules, load_table, rule_for

RULES = load_rules()


def action(text: str) -> str | None:
    """The action for a line, given without its address; None where no rule covers it."""
    error = parse_nvlink5(f"NVRM: Xid (PCI:0018:01:00): {text}")
    assert error is not None
    rule = rule_for(RULES, error)
    return rule.action_for(error) if rule is not None else None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)",
            Nvlink5Error(145, "RLW_SRC_TRACK", 12, 0x040988E2, 8),
        ),
        (
            "149, pid='<unknown>', name=<unknown>, NETIR Fatal XC0 i0 Link -1 (0x00000006 0x00000000)",
            Nvlink5Error(149, "NETIR", -1, 6, 0),
        ),
        (
            "149, NETIR_LINK_EVT  Fatal   XC 1 i 2 Link 01 [0x0000000a]",
            Nvlink5Error(149, "NETIR_LINK_EVT", 1, 10, None),
        ),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (cut o", None),
        ("143, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x1 0x2)", None),
        ("74, NVLink: fatal error detected on link 14(0x100000, 0x0)", None),
    ],
)
def test_parse_line(text: str, expected: Nvlink5Error | None) -> None:
    """In the forms of drivers before and since R575."""
    assert parse_nvlink5(f"NVRM: Xid (PCI:0018:01:00): {text}") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000021 0x00000002)", "reset_gpu"),
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)", "follow_recovery_action"),
        ("145, RLW_SRC_TRACK Fatal XC0 i0 Link 12 (0x000000e2 0x00000001)", "reset_gpu"),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x000000c2 0x00000001)", "none"),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x000004c2 0x00000001)", "reset_gpu"),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000006 0x00000001)", "none"),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000086 0x00000001)", "reset_gpu"),
        ("146, TLW_RX_PIPE1 Fatal XC0 i0 Link 03 (0x0000000b 0x00000004)", "reset_gpu"),
        ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", "reset_gpu"),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)", "none"),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00082226 0x00000001)", "none"),
        ("150, MSE_WATCHDOG Fatal XC0 i0 Link 00 (0x00000000 0x00000000)", "reset_gpu"),
        ("145, RLW_SRC_TRACK Fatal XC0 i0 Link 12 (0x000000e2 0x00000003)", None),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x03f001c6 0x00000000)", None),
        ("145, RLW_NEW Fatal XC0 i0 Link 12 (0x000000e2 0x00000001)", None),
    ],
)
def test_action(text: str, expected: str | None) -> None:
    """It depends on the registers. Without a rule nothing is guessed."""
    assert action(text) == expected


def test_rules_do_not_overlap() -> None:
    """At most one rule covers an error, so their order does not matter."""
    for one in RULES:
        for subcode in one.subcodes:
            for detail in one.details:
                for status in one.statuses or {0, 1}:
                    error = Nvlink5Error(one.xid, subcode, 0, detail << 20, status)
                    assert [rule for rule in RULES if rule.fits(error)] == [one]


def test_rules_match_the_table() -> None:
    """Every code of 144 to 150 has a rule, and every action occurs in the table of codes."""
    actions = {meaning.action for meaning in load_table(None).values()}
    assert {rule.xid for rule in RULES} == set(range(144, 151))
    assert {rule.action for rule in RULES} <= actions
