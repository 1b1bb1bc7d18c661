"""Counts of XID errors that two sources report."""

from __future__ import annotations

from rankwatch_agent.sources.xid import (
    MAX_CODES,
    MAX_GPUS,
    OTHER_GPU,
    SEVERITY_WAIT_SECONDS,
    XidCount,
    XidCounter,
    XidMeaning,
)
from support.agent.process import ManualClock

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


def test_identify() -> None:
    """Errors counted by address and by UUID become one count, later ones too."""
    xids = counter()
    xids.add("kernel_log", "0000:3b:00.0", 79, 100.0, severity="critical")
    xids.add("kernel_log", "0000:3b:00.0", 13, 90.0, severity="application")
    xids.add("nvml", "GPU-a", 79, 101.0)
    xids.identify("0000:3b:00.0", "GPU-a")
    assert xids.counts() == [XidCount("GPU-a", 13, 1, 90.0), XidCount("GPU-a", 79, 1, 101.0)]
    assert xids.severities() == {("GPU-a", "critical"): 1, ("GPU-a", "application"): 1}
    xids.add("kernel_log", "0000:3b:00.0", 79, 110.0, severity="critical")
    assert xids.counts()[1] == XidCount("GPU-a", 79, 2, 110.0)


def test_limits() -> None:
    """All others share one count, so that garbage in a log cannot fill the database."""
    xids = counter()
    for xid in range(1, 3 * MAX_CODES):
        xids.add("kernel_log", "GPU-a", xid, 1.0, severity="info")
    counts = xids.counts()
    assert len(counts) == MAX_CODES + 1
    assert counts[-1] == XidCount("GPU-a", None, 2 * MAX_CODES - 1, 1.0)
    for number in range(3 * MAX_GPUS):
        xids.add("kernel_log", f"GPU-{number}", 13, 1.0)
        xids.identify(f"0000:{number:02x}:00.0", f"GPU-{number}")
    gpus = {each.gpu for each in xids.counts()}
    assert len(gpus) == MAX_GPUS + 1
    assert OTHER_GPU in gpus
