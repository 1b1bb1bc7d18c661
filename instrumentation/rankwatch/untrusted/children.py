"""Child processes: how each is started, and how those that read users' data are confined.

A confined child imports its module with the rights of its parent, so that the Python of a service may lie in
a folder of its own; what it imports later must be readable for the user. Before it reads the first byte it
gives up what it does not need: the rights of its parent for those of the user whose data it reads, the
network, and resources beyond its limits.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import platform
import pwd
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rankwatch.processes import python

NICE = 19
"""Training comes first."""
_FILES = 256
_NO_GROUP = 65534
"""`nogroup`, which owns nothing (nobody's group in the Linux Standard Base)."""
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_IOPRIO_IDLE = 3 << 13


class _Machine(NamedTuple):
    """Numbers of the kernel's interface on one architecture: linux/audit.h and its table of system calls."""

    audit: int
    ioprio_set: int
    network: tuple[int, ...]
    """socket and io_uring_setup: what a process gets a socket by."""


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 251, (41, 425)),
    "aarch64": _Machine(0xC00000B7, 30, (198, 425)),
}
_X32 = 0x40000000
"""From this number on: the calls of x86_64 under other numbers."""


class Limits(NamedTuple):
    """What a confined child may use."""

    seconds: float
    """Time by the clock. Then it ends itself, because its parent may have no right to end it."""
    cpu_seconds: int
    memory_bytes: int
    """Address space, RLIMIT_AS."""
    output_bytes: int
    """Of a file that it writes, RLIMIT_FSIZE."""
    background: bool = True
    """It is the last to get processor and disk, because training comes first. On a busy node even the start
    of Python takes half a minute then."""


class Owner(NamedTuple):
    """The user whose data a child reads, with whose rights it does so."""

    uid: int
    gid: int = -1
    """-1: the child asks the node for their groups, which may wait for a directory service."""
    groups: tuple[int, ...] = ()


def confined(module: str, *arguments: str, limits: Limits, owner: Owner | None = None) -> list[str]:
    """Return the command line of a child that calls `main()` of a module once it is confined.

    owner: None leaves it the user of its parent, without capabilities.
    """
    order = json.dumps({"limits": limits, "owner": owner})
    return python("-m", __name__, order, module, *arguments)


def memory_file() -> BinaryIO:
    """Return an empty file for what a child is asked and what it answers.

    A pipe would have its parent wait for a child that its user has stopped, and in a container there may be
    no directory for a temporary file.
    """
    return os.fdopen(os.memfd_create("rankwatch"), "w+b")


def owner_of(uid: int, pid: int | None = None) -> Owner:
    """Return a user with the groups of their process, or else with those that the node knows of.

    pid: a process of theirs in this PID namespace. The group of a file says nothing: in a folder with the
    setgid bit it may be one that its owner is not in.
    """
    with contextlib.suppress(OSError, LookupError, ValueError):
        if pid is not None:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
            fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            if int(fields["Uid"].split()[1]) == uid:
                # The real group: a program with the setgid bit lends another one.
                gid = int(fields["Gid"].split()[0])
                return Owner(uid, gid, tuple(map(int, fields["Groups"].split())))
    return Owner(uid)


def _with_groups(owner: Owner) -> Owner:
    if owner.gid >= 0:
        return owner
    try:
        user = pwd.getpwuid(owner.uid)
        return Owner(owner.uid, user.pw_gid, tuple(os.getgrouplist(user.pw_name, user.pw_gid)))
    except (KeyError, OSError):
        return Owner(owner.uid, _NO_GROUP)


def confine(limits: Limits, owner: Owner | None) -> bool:
    """Confine this process. Returns True if it has the rights of the owner now, and of nobody else.

    Where its parent could not lend it the rights of another user, it keeps the user of its parent without any
    capability. Then it must look who owns what it opens.
    """
    _step_back(limits)
    for which, most in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_FSIZE, limits.output_bytes),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        allowed = resource.getrlimit(which)[1]
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(which, (most, most))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds)
    os.umask(0o077)
    became = owner is not None and _become(_with_groups(owner))
    _drop_capabilities()
    _leave_network()
    return became


def _step_back(limits: Limits) -> None:
    """Be the first to be killed if memory runs out, and in the background the last to get anything."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if not limits.background:
        return
    with contextlib.suppress(OSError):
        os.nice(NICE)
    machine = _MACHINES.get(platform.machine())
    if machine is not None:
        ctypes.CDLL(None).syscall(machine.ioprio_set, 1, 0, _IOPRIO_IDLE)


def _become(owner: Owner) -> bool:
    """Take the ids of a user; False where that is not allowed. Raises OSError where it fails half way."""
    try:
        os.setgroups(owner.groups)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EINVAL):  # EINVAL: an id that this namespace has not
            raise
        return os.getuid() == owner.uid
    try:
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _drop_capabilities() -> None:
    """Give up all of them. That is always allowed."""
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    library.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    head = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    if library.capset(head, bytes(24)):
        raise OSError(ctypes.get_errno(), "could not give up capabilities")


def _leave_network() -> None:
    """Have the kernel refuse sockets (seccomp(2)). Some sandboxes have no such filter; the limits remain."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or sys.byteorder != "little":
        return
    library = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(_filter(machine))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code))
    library.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)


def _filter(machine: _Machine) -> bytes:
    """Return a program of classic BPF over `struct seccomp_data`: code, jumps if true and if not, value."""
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EACCES
    calls = machine.network
    lines = [
        (load, 0, 0, 4),  # the architecture
        (equal, 0, len(calls) + 3, machine.audit),
        (load, 0, 0, 0),  # the number of the call
        (at_least, len(calls) + 1, 0, _X32),
        *((equal, len(calls) - at, 0, call) for at, call in enumerate(calls)),
        (answer, 0, 0, allow),
        (answer, 0, 0, refuse),
    ]
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def main() -> None:
    """Run a module confined: `python -m rankwatch.untrusted.children ORDER MODULE ARGUMENTS...`."""
    order, name, *arguments = sys.argv[1:]
    given = json.loads(order)
    owner = given["owner"]
    program = importlib.import_module(name)
    confined_to = None if owner is None else Owner(owner[0], owner[1], tuple(owner[2]))
    sys.argv = [name, *arguments]
    program.main(confine(Limits(*given["limits"]), confined_to))


if __name__ == "__main__":
    main()
