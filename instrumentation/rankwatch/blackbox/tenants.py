"""Directories of tenants: `<directory>/<tenant>/<run>/<rank>.blackbox`.

Where jobs of several tenants run as one user, as in pods of several namespaces, none of them may see the
boxes of another: each has only its own part of the directory mounted. Whoever prepares the node makes it, and
every user of the tenant writes to it: by that it is known.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rankwatch.untrusted.folders import Folder

_MOST_TENANTS = 256
_MOST_ENTRIES = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)
"""Without a dot, which ends the tenant's part of the name of a run: a namespace of Kubernetes is one."""


def is_tenant(name: str, status: os.stat_result) -> bool:
    """True for a tenant's directory, which belongs to root or to this user and is writable for others.

    A run's directory is writable for its owner alone, and that of a user never counts.
    """
    return (
        stat.S_ISDIR(status.st_mode)
        and bool(status.st_mode & stat.S_IWOTH)
        and status.st_uid in (0, os.geteuid())
        and _NAME.fullmatch(name) is not None
    )


def tenants_of(directory: Path) -> list[Path]:
    """The tenants' directories in a directory of black boxes; none if it cannot be read."""
    try:
        with Folder.open(directory, follow=True) as folder:
            return sorted(directory / each for each in islice(_tenants(folder), _MOST_TENANTS))
    except OSError:
        return []


def _tenants(folder: Folder) -> Iterator[str]:
    for name in islice(folder.names(), _MOST_ENTRIES):
        try:
            if is_tenant(name, folder.status_of(name)):
                yield name
        except OSError:
            continue  # gone meanwhile


def in_tenant(run: str, tenant: str) -> str:
    """The name of a run of a tenant, which begins with the tenant's: two tenants share no name."""
    return run if not tenant or run.startswith(f"{tenant}.") else f"{tenant}.{run}"
