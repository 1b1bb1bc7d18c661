"""Copies from directories that a training process can write to."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rankwatch.conventions.states import EvidenceFault
from rankwatch_agent.incidents.bundle import BundleFolder, EvidenceError, copy_file


def copy(source: Path, tmp_path: Path, *, max_bytes: int = 1000) -> bytes:
    """What arrives of a file."""
    folder = BundleFolder(tmp_path / "bundle", max_bytes=1 << 20)
    folder.path.mkdir(exist_ok=True)
    copy_file(source, folder, "copy", owner=os.geteuid(), fault=EvidenceFault.BLACK_BOX, max_bytes=max_bytes)
    return (folder.path / "copy").read_bytes()


def test_copy(tmp_path: Path) -> None:
    """A large file goes in pieces."""
    content = os.urandom(3 << 20)
    (tmp_path / "source").write_bytes(content)
    folder = BundleFolder(tmp_path, max_bytes=16 << 20)
    copy_file(
        tmp_path / "source",
        folder,
        "copy",
        owner=os.geteuid(),
        fault=EvidenceFault.BLACK_BOX,
        max_bytes=4 << 20,
    )
    assert (tmp_path / "copy").read_bytes() == content


@pytest.mark.parametrize("kind", ["link", "folder link", "fifo", "socket", "directory", "missing", "large"])
def test_refused_sources(tmp_path: Path, kind: str) -> None:
    """No link is followed, and nothing blocks."""
    run = tmp_path / "run"
    run.mkdir()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "0.blackbox").write_text("secret")
    source = run / "0.blackbox"
    if kind == "link":
        source.symlink_to(secret / "0.blackbox")
    elif kind == "folder link":
        run.rmdir()
        run.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(source)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(source))
    elif kind == "directory":
        source.mkdir()
    elif kind == "large":
        source.write_bytes(b"x" * 1001)
    with pytest.raises(EvidenceError) as raised:
        copy(source, tmp_path)
    assert raised.value.fault is EvidenceFault.BLACK_BOX
    assert not (tmp_path / "bundle" / "copy").exists()
