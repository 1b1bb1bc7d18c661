"""Grafana dashboards, generated from the same config object as the rules.

They are Classic JSON, not v2, because file provisioning and sidecars of Grafana 10 to 13 refuse v2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rankwatch_alerts import RuleConfig
from rankwatch_alerts.generation import write_text

__all__ = ["dashboards", "all_panels", "write_dashboards"]


def dashboards(config: RuleConfig) -> tuple[dict[str, Any], ...]:
    """Every dashboard as Grafana reads it, with what the SDK leaves out filled in. Needs the SDK."""
    # Only here, so that a missing extra is named by the command, and not by an ImportError.
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    from rankwatch_dashboards.board_files import BOARDS, build_board
    from rankwatch_dashboards.label_names import in_dashboard

    encoder = JSONEncoder(sort_keys=True)
    made = (json.loads(encoder.encode(build_board(each, config).build())) for each in BOARDS)
    return tuple(in_dashboard(_completed(each), config.label_names) for each in made)


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    for number, panel in enumerate(all_panels(document), start=1):
        panel["id"] = number
    return {**document, "id": None, "version": 1}


def all_panels(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard, rows included, those inside closed rows too."""
    for panel in document["panels"]:
        yield panel
        yield from panel.get("panels") or ()


def write_dashboards(config: RuleConfig, directory: Path) -> list[Path]:
    """Write each dashboard to `<uid>.json` and return the paths; raises OSError where that fails."""
    return [
        write_text(
            directory / f"{each['uid']}.json",
            json.dumps(each, indent=1, sort_keys=True, ensure_ascii=False) + "\n",
        )
        for each in dashboards(config)
    ]
