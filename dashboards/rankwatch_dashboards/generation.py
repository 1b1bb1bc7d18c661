"""Writing the dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankwatch_alerts import RuleConfig


def dashboards(config: RuleConfig) -> tuple[dict[str, Any], ...]:
    """Every dashboard as Grafana reads it."""
    # Only here, so that whoever lacks the extra can import us and be told which one it is.
    from rankwatch_dashboards.encoding import encode
    from rankwatch_dashboards.run_debug import run_debug

    return (encode(run_debug(config)),)


def write_dashboards(config: RuleConfig, directory: Path) -> list[Path]:
    """Write each dashboard to `<uid>.json` and return the paths; raises OSError where that fails."""
    from rankwatch_dashboards.encoding import to_json

    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for each in dashboards(config):
        path = directory / f"{each['uid']}.json"
        path.write_text(to_json(each), encoding="utf-8")
        paths.append(path)
    return paths
