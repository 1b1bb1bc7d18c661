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

from rankwatch.identity import in_tenant
from rankwatch.untrusted.folders import Folder

_MOST_TENANTS = 256
_MOST_ENTRIES = 1 << 16
_OWNER_SUFFIX = re.compile(r"-uid(\d{1,10})(?:-\d+)?$", re.ASCII)
"""Ending of a run's name that only boxes of this user id may have (see `rankwatch.blackbox.place`)."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)
"""Without a dot, which ends the tenant's part of the name of a run: a namespace of Kubernetes is one."""


def is_tenant(name: str, status: os.stat_result) -> bool:
    """Return True for a tenant's directory, which belongs to root or to this user and is writable for others.

    A run's directory is writable for its owner alone, and that of a user never counts.
    """
    return (
        stat.S_ISDIR(status.st_mode)
        and bool(status.st_mode & stat.S_IWOTH)
        and status.st_uid in (0, os.geteuid())
        and _NAME.fullmatch(name) is not None
    )


def tenants_of(directory: Path) -> list[Path]:
    """Return the tenants' directories in a directory of black boxes; none if it cannot be read."""
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


def run_label(run: Path, directory: Path | None, owner: int, *, foreign: bool = False) -> str:
    """Return what labels call a run: no two of different tenants, or of different users, have one label.

    A name without an ending of a user belongs to one folder: in that of a tenant to the one which begins with
    the tenant's name, as the trainer has called it; elsewhere to one which does not begin so. Who owns any
    other folder, or has a box in one of another user, gets such an ending, which is theirs alone.

    run: its folder, in `directory` or in that of a tenant there; None if only the name counts.
    owner: user id of the boxes' owner. foreign: the run's folder belongs to somebody else.
    """
    name, tenant = run.name, "" if directory in (None, run.parent) else run.parent.name
    label = in_tenant(name, tenant)
    claimed = _OWNER_SUFFIX.search(label)
    if claimed is not None:
        foreign |= int(claimed[1]) != owner
    elif tenant:
        foreign |= label != name
    elif directory is not None:
        foreign |= _is_of_tenant(name, directory)
    return f"{label}-uid{owner}" if foreign else label


def _is_of_tenant(run: str, directory: Path) -> bool:
    """Return True if the name of a run begins with that of a tenant, whose folder is there."""
    tenant, dot, _ = run.partition(".")
    try:
        with Folder.open(directory, follow=True) as folder:
            return bool(tenant and dot) and is_tenant(tenant, folder.status_of(tenant))
    except OSError:
        return False
