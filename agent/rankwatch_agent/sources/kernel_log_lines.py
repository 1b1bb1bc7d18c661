"""Follows /dev/kmsg, and recognises the lines that report a known fault or an XID error.

The log may be a file or FIFO of such records, too. It is read from the oldest record that the kernel still
has. A record is a line `priority,sequence,microseconds,flags;message`; indented lines may follow it. The
format is that of the kernel's Documentation/ABI/testing/dev-kmsg. Lines that are recognised:

NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel
NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 ...)
NVRM: Xid (PCI:0018:01:00): 149, pid='<unknown>', name=<unknown>, NETIR Fatal XC0 i0 Link -1 (0x...)
NVRM: Xid (PCI:0000:00:1e): 149, NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x0000000a]
NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.
NVRM: GPU at PCI:0000:3b:00: GPU-8f1c...
nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.inventory import normalise_bus_id
from rankwatch_agent.sources.xid import CRITICAL, SEVERITY_IN_LOG, WARNING, Nvlink5Error

FALLEN_OFF_THE_BUS = 79

_ADDRESS = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
# Names of processes and of files, which users choose, stand in the middle of lines: these begin with theirs.
_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?({_ADDRESS})[^)]{{0,40}}\): ([0-9]{{1,5}})\b(.*)")
_FALLEN = re.compile(rf"NVRM: .{{0,20}}GPU (?:at )?(?:PCI:)?({_ADDRESS}).{{0,120}}fallen off the bus")
_IDENTITY = re.compile(rf"NVRM: GPU at PCI:({_ADDRESS}): (GPU-[0-9a-fA-F-]{{36}})")
_SEVERITY = re.compile(r"\b(non-?)?fatal\b", re.IGNORECASE)
_SXID = re.compile(
    rf"nvidia-nvswitch\d{{0,4}}: SXid \((?:PCI:)?({_ADDRESS})\): ([0-9]{{1,6}}), (Non-)?[Ff]atal\b"
)
_REGISTER = r"(0x[0-9a-fA-F]{1,8})"
_NVLINK5 = re.compile(
    r"NVRM: Xid [^)]{1,60}\): (14[4-9]|150),(?:.{0,200}?[, ])?"
    r"([A-Z][A-Z0-9_]{1,40}(?: Degraded)?) +(?:Non-?)?[Ff]atal +"
    rf"XC ?\d{{1,3}} +i ?\d{{1,3}} +Link +(-?\d{{1,3}}) *[(\[]{_REGISTER}(?: +{_REGISTER})?"
)


class KnownFault(NamedTuple):
    """A fault, and how to recognise its line."""

    event: str
    """Value of the label `event`."""
    substring: str
    """Text in every such line. It rules out most lines before the pattern runs."""
    pattern: re.Pattern[str]


def _fault(event: str, substring: str, pattern: str = "") -> KnownFault:
    return KnownFault(event, substring, re.compile(pattern or re.escape(substring)))


KNOWN_FAULTS = (
    # GPUs and their links
    _fault("gpu_fallen_off_bus", "fallen off the bus", r"NVRM: .{0,200}fallen off the bus"),
    _fault("gpu_initialisation_failed", "RmInitAdapter failed"),
    _fault("nvidia_driver_loaded", "NVRM: loading NVIDIA"),
    _fault("nvswitch_fatal", "SXid (PCI:", r"SXid \(PCI:[^)]{1,40}\): \d{1,6}, Fatal"),
    _fault("nvswitch_nonfatal", "SXid (PCI:", r"SXid \(PCI:[^)]{1,40}\): \d{1,6}, Non-fatal"),
    _fault("nvlink_peer_not_found", "postRxDetLinkMask failed"),
    _fault("nvidia_peermem_invalid_context", "nvidia-peermem", r"nvidia-peermem .{0,80}invalid context"),
    _fault("nccl_segfault", "libnccl", r"segfault at .{0,200} in libnccl(-net)?\.so"),
    # NICs
    _fault("mlx5_insufficient_power", "Detected insufficient power on the PCIe slot"),
    _fault("mlx5_high_temperature", "High Temperature", r"Port module event.{0,80}High Temperature"),
    _fault("mlx5_module_error", "Port module event[error]"),
    _fault("mlx5_access_reg_failed", "ACCESS_REG", r"mlx5_cmd_.{0,60}ACCESS_REG.{0,60}failed"),
    _fault("mlx5_device_unhealthy", "mlx5_core", r"mlx5_core .{0,80}device's health compromised"),
    _fault("transmit_timeout", "transmit queue", r"NETDEV WATCHDOG: .{0,80}transmit queue \d+ timed out"),
    # Memory, processors, buses
    _fault("oom_kill", "Out of memory: Killed process", "^Out of memory: Killed process"),
    _fault("cgroup_oom_kill", "Memory cgroup out", "^Memory cgroup out of memory: Killed process"),
    _fault("machine_check", "[Hardware Error]", r"mce: .{0,40}\[Hardware Error\]: Machine [Cc]heck"),
    _fault("firmware_error", "Hardware error from APEI"),
    _fault("memory_error_corrected", "EDAC", r"^EDAC .{0,20}\b\d+ CE\b"),
    _fault("memory_error_uncorrected", "EDAC", r"^EDAC .{0,20}\b\d+ UE\b"),
    _fault("pcie_error_corrected", "PCIe Bus Error", r"PCIe Bus Error: severity=Correct(?:ed|able)"),
    _fault("pcie_error_uncorrected", "PCIe Bus Error", r"PCIe Bus Error: severity=Uncorrect"),
    _fault("hung_task", "blocked for more than", r"^INFO: task .{1,80} blocked for more than \d+ seconds"),
    _fault("soft_lockup", "BUG: soft lockup"),
    _fault("rcu_stall", "rcu", r"rcu.{0,60}detected (?:expedited )?stalls?\b|rcu.{0,60}self-detected stall"),
    _fault("kernel_oops", "Oops", r"^(?:Internal error: )?Oops(?::| - )"),
    # Where data and checkpoints live
    _fault("file_system_error", "error", r"^(?:EXT4-fs|BTRFS)\b.{0,80}\berror\b"),
    _fault("xfs_corruption", "XFS", r"^XFS .{0,80}(?:Corruption|metadata I/O error)"),
    _fault("nfs_not_responding", "nfs: server", r"nfs: server .{1,200} not responding"),
    _fault("nvme_timeout", "nvme", r"nvme\S* .{0,80}(?:timeout, (?:aborting|reset)|controller is down)"),
)

EVENTS = tuple(fault.event for fault in KNOWN_FAULTS)
"""Every event. Each has a series from the start."""


_OF_PROCESS = re.compile(
    r"(?:traps: )?.{1,60}?\[\d{1,10}\](?::| )|.{1,60}? invoked oom-killer: |oom-kill:|\[ *\d{1,10}\] "
    r"|oom_reaper: |(?:Memory cgroup out|Out) of memory: Killed process |CPU: \d{1,5} .{0,40}Comm: "
    r"|INFO: task |process '"
)
"""Lines about a process of a user: its name may be chosen to look like a fault, and so may that of a file
that it has mapped, with which the line of a crash ends."""
_EVENTS_OF_PROCESSES = frozenset(("nccl_segfault", "oom_kill", "cgroup_oom_kill", "hung_task"))


def events_in(text: str) -> Iterator[str]:
    """Yield the events that a line reports: mostly none."""
    for event, substring, pattern in KNOWN_FAULTS:
        if substring not in text or not pattern.search(text):
            continue
        if event in _EVENTS_OF_PROCESSES or not _OF_PROCESS.match(text):
            yield event


class XidLine(NamedTuple):
    """An XID error in the log."""

    bus_id: str
    """In the kernel's form."""
    xid: int
    severity: str | None
    """Severity of this occurrence; None where the line does not give it."""
    implied: bool
    """True where the line has no code but says that a GPU has fallen off the bus."""


def parse_xid(text: str) -> XidLine | None:
    """Return the XID error in a line, or None."""
    if "NVRM" not in text:
        return None
    found = _XID.match(text)
    if found is not None:
        xid = int(found[2])
        return XidLine(normalise_bus_id(found[1]), xid, _severity(xid, found[3]), False) if xid else None
    fallen = _FALLEN.match(text)
    if fallen is not None:
        return XidLine(normalise_bus_id(fallen[1]), FALLEN_OFF_THE_BUS, None, True)
    return None


def parse_identity(text: str) -> tuple[str, str] | None:
    """Return PCI address and UUID of a GPU, which the driver logs once before its first error."""
    found = _IDENTITY.match(text) if "NVRM" in text else None
    return (normalise_bus_id(found[1]), found[2]) if found else None


def _severity(xid: int, rest: str) -> str | None:
    """Return the severity of a code that can be fatal or not. Texts of other codes use these words freely."""
    found = _SEVERITY.search(rest) if xid in SEVERITY_IN_LOG else None
    if found is None:
        return None
    return WARNING if found[1] else CRITICAL


class SxidLine(NamedTuple):
    """An error of an NVSwitch in the log."""

    bus_id: str
    """In the kernel's form."""
    sxid: int
    fatal: bool


def parse_sxid(text: str) -> SxidLine | None:
    """Return the error of an NVSwitch in a line, or None.

    The driver logs several lines for one error. Only the first states whether it is fatal.
    """
    found = _SXID.match(text) if "SXid" in text else None
    return SxidLine(normalise_bus_id(found[1]), int(found[2]), not found[3]) if found else None


def parse_nvlink5(text: str) -> Nvlink5Error | None:
    """Return the NVLink 5 error in a line, or None where there is none or its registers are missing."""
    found = _NVLINK5.match(text) if "NVRM: Xid" in text else None
    if found is None:
        return None
    status = int(found[5], 16) if found[5] else None
    return Nvlink5Error(int(found[1]), found[2], int(found[3]), int(found[4], 16), status)


_HEADER = re.compile(rb"\d{1,6},(\d{1,18}),(\d{1,18}),[^;]{0,200};")
_ESCAPED_NEWLINE = "\\x0a"
_CHUNK_BYTES = 1 << 16
"""The device returns one record per read, of at most 8 KiB, and refuses a buffer that is too small."""
_MAX_LINE_BYTES = 1 << 14
"""Longer lines are cut."""
_REFUSED = frozenset({errno.EPERM, errno.EACCES})
_NOT_HERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class KernelRecord(NamedTuple):
    """A record of the kernel's log."""

    sequence: int
    """Number of the record since boot. A gap means that records were overwritten."""
    seconds: float
    """Time since boot on the log's own clock, which may drift against the wall clock."""
    text: str
    """The message on one line. Unprintable bytes stay escaped as the kernel writes them."""


def parse_record(line: bytes) -> KernelRecord | None:
    """Return the record that begins on this line; None for continuation lines and anything else."""
    header = _HEADER.match(line)
    if header is None:
        return None
    text = line[header.end() :].decode("utf-8", "replace")
    return KernelRecord(int(header[1]), int(header[2]) / 1e6, text.replace(_ESCAPED_NEWLINE, " ").strip())


class KernelLogReader:
    """Keeps its position between reads. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._was_open = False
        self._unfinished = b""
        self._last_sequence: int | None = None
        self.missed = 0
        """Records that were overwritten before they were read, by the gaps in the sequence."""
        self.caught_up = False
        """True once the reader has reached the end of the log for the first time."""

    def read(self, max_lines: int) -> list[KernelRecord]:
        """Return the records since the last call, at most about `max_lines`. The next call returns the rest.

        Raises NotApplicable where there is no such file or the agent never had permission to read it,
        CollectError where it cannot be read.
        """
        descriptor = self._ready()
        records: list[KernelRecord] = []
        lines = 0
        while lines < max_lines:
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except BrokenPipeError:  # overwritten just now; the next read gives the oldest record left
                lines += 1
                continue
            except BlockingIOError:
                chunk = b""
            except OSError as error:
                self.close()
                raise CollectError(f"could not read {self._path}: {error.strerror or error}") from None
            if not chunk:
                self.caught_up = True
                break
            found = self._split(chunk)
            lines += max(1, len(found))  # chunks without a line count too, so that the loop ends
            for line in found:
                self._take(line, records)
        return records

    def close(self) -> None:
        """Close the file. The next read opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self, line: bytes, records: list[KernelRecord]) -> None:
        record = parse_record(line)
        if record is None:
            return
        last = self._last_sequence
        if last is not None and record.sequence <= last and self._is_device():
            return  # read before the device was opened again
        if last is not None:
            self.missed += max(0, record.sequence - last - 1)
        self._last_sequence = record.sequence
        records.append(record)

    def _split(self, chunk: bytes) -> list[bytes]:
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        self._unfinished = self._unfinished[:_MAX_LINE_BYTES]
        return [line[:_MAX_LINE_BYTES] for line in lines]

    def _ready(self) -> int:
        if self._descriptor is not None and not self._replaced(self._descriptor):
            return self._descriptor
        self.close()
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise self._cannot_open(error) from None
        self._was_open = True
        self._unfinished = b""
        if not self._is_device():
            self._last_sequence = None
        return self._descriptor

    def _is_device(self) -> bool:
        """Return True for /dev/kmsg, whose sequence goes on when it is opened again."""
        return self._descriptor is not None and stat.S_ISCHR(os.fstat(self._descriptor).st_mode)

    def _replaced(self, descriptor: int) -> bool:
        """Return True if the path now leads to another file, or the file was truncated."""
        try:
            now = self._path.stat()
        except OSError as error:
            self.close()
            raise self._cannot_open(error) from None
        opened = os.fstat(descriptor)
        if stat.S_ISCHR(opened.st_mode) and opened.st_rdev == now.st_rdev:
            return False
        if (opened.st_dev, opened.st_ino) != (now.st_dev, now.st_ino):
            return True
        return stat.S_ISREG(opened.st_mode) and opened.st_size < os.lseek(descriptor, 0, os.SEEK_CUR)

    def _cannot_open(self, error: OSError) -> CollectError | NotApplicable:
        reason = f"{self._path}: {error.strerror or error}"
        if error.errno in _NOT_HERE:
            return NotApplicable(reason)
        if error.errno in _REFUSED and not self._was_open:
            return NotApplicable(f"{reason}; it takes the capability CAP_SYSLOG and access to the device")
        return CollectError(f"could not open {reason}")
