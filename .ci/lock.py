"""Writes what the agent's image and unit install, each file with its hash, for Linux on x86_64 and aarch64.

Versions are those of constraints.txt. pip finds files and hashes on the index that it is set up for.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "agent" / "deploy"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
MANYLINUX = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, 29)))
"""What glibc 2.28 and newer runs: RHEL 8, Debian 10, Ubuntu 20.04."""
_HEAD = "# Written by `make lock`: change pyproject.toml or constraints.txt instead.\n"


def found(requirements: list[str], python: str, machine: str) -> list[dict[str, str]]:
    """Name, version and SHA-256 of each wheel that pip would install there."""
    platforms = [word for each in MANYLINUX for word in ("--platform", f"{each}_{machine}")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "--target", folder, "--only-binary", ":all:", *platforms]
        command += ["--python-version", python, "--constraint", str(ROOT / "constraints.txt"), *requirements]
        subprocess.run(command, check=True)
        installed = json.loads(report.read_text())["install"]
    return [
        {
            "name": each["metadata"]["name"].lower().replace("_", "-"),
            "version": each["metadata"]["version"],
            "hash": each["download_info"]["archive_info"]["hashes"]["sha256"],
        }
        for each in installed
    ]


def write(file: Path, requirements: list[str]) -> None:
    """Write the wheels of all Pythons and machines."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for python, machine in product(PYTHONS, MACHINES):
        for each in found(requirements, python, machine):
            hashes[f"{each['name']}=={each['version']}"].add(each["hash"])
    lines = (
        " \\\n".join((pinned, *(f"    --hash=sha256:{each}" for each in sorted(hashes[pinned]))))
        for pinned in sorted(hashes)
    )
    file.write_text(_HEAD + "".join(f"{each}\n" for each in lines))


def main() -> None:
    """Write both files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    write(FOLDER / "requirements.txt", [*extras["agent"], *extras["evidence"]])
    write(FOLDER / "requirements-build.txt", project["build-system"]["requires"])


if __name__ == "__main__":
    main()
