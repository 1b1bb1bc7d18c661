"""The systemd unit of the agent and its drop-ins, as text."""

from __future__ import annotations

from pathlib import Path

from support.deploy.chart import DEPLOY

UNIT = DEPLOY / "rankwatch-agent.service"
DROP_INS = sorted((DEPLOY / "drop-ins").glob("*.conf"))


def directives(path: Path) -> dict[str, list[str]]:
    """Name -> values, in order."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found
