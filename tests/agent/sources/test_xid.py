"""XID errors: counts from two sources, the collector, the table of codes, and the action for NVLink 5."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable, UserError
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.kernel_log_lines import parse_nvlink5
from rankwatch_agent.sources.xid import (
    MAX_CODES,
    MAX_GPUS,
    OTHER_GPU,
    SEVERITIES,
    SEVERITY_IN_LOG,
    SEVERITY_WAIT_SECONDS,
    Nvlink5Error,
    XidCollector,
    XidCount,
    XidCounter,
    XidMeaning,
    load_rules,
    load_table,
    rule_for,
)
from support.agent.process import ManualClock, values

TABLE = {
    79: XidMeaning("fell", "critical", "reboot_node"),
    13: XidMeaning("app", "application", "restart_app"),
    145: XidMeaning("nvlink", "critical", "check_nvlink"),
}


def counter(clock: ManualClock | None = None) -> XidCounter:
    return XidCounter(TABLE, monotonic=clock or ManualClock())


def test_error_from_both_sources() -> None:
    """It counts once: the larger count is exported, with the latest time."""
    xids = counter()
    xids.add("kernel_log", "GPU-a", 79, 100.0, severity="critical")
    xids.add("nvml", "GPU-a", 79, 101.0)
    xids.add("nvml", "GPU-a", 13, None)
    assert xids.counts() == [XidCount("GPU-a", 13, 1, None), XidCount("GPU-a", 79, 1, 101.0)]
    assert xids.severities() == {("GPU-a", "critical"): 1, ("GPU-a", "application"): 1}
    xids.add("nvml", "GPU-a", 79, 50.0)
    assert xids.counts()[1] == XidCount("GPU-a", 79, 2, 101.0)
    assert xids.severities()["GPU-a", "critical"] == 2


def test_unknown_code() -> None:
    """It is a warning, to be looked up."""
    xids = counter()
    xids.add("nvml", "GPU-a", 4242, 1.0)
    assert xids.severities() == {("GPU-a", "warning"): 1}
    assert xids.meaning(4242).action == "look_up"


def test_severity_from_the_log() -> None:
    """Nonfatal in the log wins over critical in the table, even if NVML reports first."""
    clock = ManualClock()
    xids = counter(clock)
    xids.add("nvml", "GPU-a", 145, 1.0)
    assert xids.severities() == {}
    clock.now += 5
    xids.add("kernel_log", "GPU-a", 145, 1.0, severity="warning")
    clock.now += 2 * SEVERITY_WAIT_SECONDS
    assert xids.severities() == {("GPU-a", "warning"): 1}
    assert xids.counts()[0].errors == 1


def test_severity_without_a_log() -> None:
    """The table decides after a wait; a later log changes nothing that was exported."""
    clock = ManualClock()
    xids = counter(clock)
    xids.add("nvml", "GPU-a", 145, 1.0)
    clock.now += SEVERITY_WAIT_SECONDS
    assert xids.severities() == {("GPU-a", "critical"): 1}
    xids.add("kernel_log", "GPU-a", 145, 1.0, severity="warning")
    assert xids.severities() == {("GPU-a", "critical"): 1}


def test_number_of_gpus_is_bounded() -> None:
    """All others share one count, so that garbage in a log cannot fill the database."""
    xids = counter()
    for number in range(3 * MAX_GPUS):
        xids.add("kernel_log", f"GPU-{number}", 13, 1.0)
        xids.identify(f"0000:{number:02x}:00.0", f"GPU-{number}")
    gpus = {each.gpu for each in xids.counts()}
    assert len(gpus) == MAX_GPUS + 1
    assert OTHER_GPU in gpus


ADDRESS = "0000:3b:00.0"
GPU = GpuIdentity(uuid="GPU-a", pci_bus_id=ADDRESS, index=0, minor_number=0, model="H100")


def collector(*gpus: GpuIdentity) -> tuple[XidCollector, GpuInventory, XidCounter]:
    inventory, xids = GpuInventory(), XidCounter(load_table(None))
    inventory.publish(gpus, ())
    return XidCollector(inventory=inventory, xids=xids, schedule=Schedule(5, 5)), inventory, xids


def test_gpu_becomes_known() -> None:
    """Errors at its address and its UUID become one count, which stays when the driver does not show it."""
    xid, inventory, xids = collector()

    def shown(name: str) -> dict[tuple[str, ...], float]:
        metric = f"rankwatch_gpu_xid_{name}"
        return {key[1:]: value for key, value in values([xid.collect()]).items() if key[0] == metric}

    xids.add("kernel_log", ADDRESS, 79, 100.0, severity="critical")
    xids.add("kernel_log", ADDRESS, 13, None, severity="application")
    xids.add("nvml", "GPU-a", 79, 101.0)
    assert shown("errors_total") == {(ADDRESS, "13"): 1, (ADDRESS, "79"): 1, ("GPU-a", "79"): 1}
    inventory.publish([GPU], ())
    assert shown("errors_total") == {("GPU-a", "13"): 1, ("GPU-a", "79"): 1}
    assert shown("last_timestamp_seconds") == {("GPU-a", "79"): 101.0}
    assert xids.severities() == {("GPU-a", "critical"): 1, ("GPU-a", "application"): 1}
    inventory.publish([], ())
    xids.add("kernel_log", ADDRESS, 79, 110.0, severity="critical")
    assert shown("errors_total") == {("GPU-a", "13"): 1, ("GPU-a", "79"): 2}


def test_many_codes() -> None:
    """Codes beyond the limit share one series, which has no meaning."""
    xid, _, xids = collector(GPU)
    for code in range(1, MAX_CODES + 3):
        xids.add("kernel_log", "GPU-a", code, 1.0, severity="info")
    found = values([xid.collect()])
    assert found["rankwatch_gpu_xid_errors_total", "GPU-a", "other"] == 2
    assert found["rankwatch_gpu_xid_events_total", "GPU-a", "info"] == MAX_CODES + 2
    for name, count in (("rankwatch_xid_info", MAX_CODES), ("rankwatch_gpu_xid_errors_total", MAX_CODES + 1)):
        assert len([key for key in found if key[0] == name]) == count, name


def test_no_gpu_and_no_errors() -> None:
    with pytest.raises(NotApplicable):
        collector()[0].collect()


def test_shipped_table() -> None:
    """Codes that cost a node are critical and have an action; floods of 45 are not critical."""
    table = load_table(None)
    assert table[79][1:] == ("critical", "reboot_node")
    resets = (46, 62, 64, 95, 109, 119, 120, 140, 143, 171, 172, 175)
    assert {table[code].action for code in resets} == {"reset_gpu"}
    assert {table[code].action for code in (74, *SEVERITY_IN_LOG)} == {"check_nvlink"}
    assert {table[code].severity for code in (13, 31, 43, 45)} == {"application", "info"}
    newest = {code: table[code].severity for code in range(162, 177)}
    assert [code for code in newest if newest[code] == "critical"] == [167, 169, 171, 172, 173, 175]
    assert len(table) == 113
    assert {each.severity for each in table.values()} == set(SEVERITIES)


def test_override(tmp_path: Path) -> None:
    """It replaces single fields; the rest of an unknown code has defaults."""
    override = tmp_path / "xid.toml"
    override.write_text('109 = { severity = "warning" }\n[999]\nmeaning = "ours"\naction = "open_ticket"\n')
    shipped, table = load_table(None), load_table(override)
    assert table[109] == shipped[109]._replace(severity="warning")
    assert table[999] == XidMeaning("ours", "warning", "open_ticket")
    assert {**table, 109: shipped[109]} == {**shipped, 999: table[999]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('79 = { severity = "fatal" }', "79.severity = 'fatal'.*expected one of info, application"),
        ('79 = { actions = "x" }', "79.actions = 'x'.*expected one of the fields"),
        ('79 = { action = "Call us" }', "79.action = 'Call us'.*expected one word"),
        ("79 = { meaning = 3 }", "79.meaning = 3.*expected a text"),
        ('79 = { meaning = "" }', "79.meaning"),
        ('79 = "critical"', "79 = 'critical'.*expected a table"),
        ('xid = { severity = "info" }', "key 'xid'.*expected an XID code"),
        ('0 = { severity = "info" }', "key '0'"),
        ('079 = { severity = "info" }', "key '079'"),
        ("79 = ", "could not parse"),
    ],
)
def test_wrong_override(tmp_path: Path, text: str, sentence: str) -> None:
    """The error names the file, the key and what was expected."""
    override = tmp_path / "xid.toml"
    override.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        load_table(override)
    assert str(override) in str(caught.value)


def test_missing_override(tmp_path: Path) -> None:
    """A table that the operator asked for is not silently left out."""
    with pytest.raises(UserError, match="could not read XID table"):
        load_table(tmp_path / "none.toml")


RULES = load_rules()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)",
            (145, "RLW_SRC_TRACK", 12, 0x040988E2, 8),
        ),
        (
            "149, pid='<unknown>', name=<unknown>, NETIR Fatal XC0 i0 Link -1 (0x00000006 0x00000000)",
            (149, "NETIR", -1, 6, 0),
        ),
        ("149, NETIR_EVT  Fatal   XC 1 i 2 Link 01 [0x0000000a]", (149, "NETIR_EVT", 1, 10, None)),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (cut o", None),
        ("143, NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x1 0x2)", None),
        ("74, NVLink: fatal error detected on link 14(0x100000, 0x0)", None),
    ],
)
def test_parse_line(text: str, expected: tuple[int, str, int, int, int | None] | None) -> None:
    """In the forms of drivers before and since R575."""
    assert parse_nvlink5(f"NVRM: Xid (PCI:0018:01:00): {text}") == (expected and Nvlink5Error(*expected))


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
    error = parse_nvlink5(f"NVRM: Xid (PCI:0018:01:00): {text}")
    assert error is not None
    rule = rule_for(RULES, error)
    assert (rule and rule.action_for(error)) == expected


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
