"""Writing the rule files and the Alertmanager configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rankwatch_alerts.alerting import alert_groups
from rankwatch_alerts.alertmanager import alertmanager_config
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.recording import recording_groups
from rankwatch_alerts.rules import RuleGroup

RECORDING_FILE = "recording.rules.yml"
ALERTS_FILE = "alerts.rules.yml"
ALERTMANAGER_FILE = "alertmanager.yml"


def to_yaml(document: Mapping[str, object]) -> str:
    """The document as YAML: same input, same bytes. Needs PyYAML."""
    # Only here, so that whoever lacks the extra can import us and be told which one it is.
    from rankwatch_alerts.encoding import encode

    return encode(document)


def write_rules(config: RuleConfig, directory: Path) -> list[Path]:
    """Write both rule files into an existing or new directory and return their paths.

    Raises OSError where the directory cannot be written.
    """
    return [
        _write(directory / RECORDING_FILE, _rule_file(recording_groups(config))),
        _write(directory / ALERTS_FILE, _rule_file(alert_groups(config))),
    ]


def write_all(config: RuleConfig, directory: Path) -> list[Path]:
    """Write the rule files and the Alertmanager configuration with its placeholder receivers."""
    return [
        *write_rules(config, directory),
        _write(directory / ALERTMANAGER_FILE, alertmanager_config(config)),
    ]


def _rule_file(groups: tuple[RuleGroup, ...]) -> dict[str, object]:
    return {"groups": [each.as_dict() for each in groups]}


def _write(path: Path, document: Mapping[str, object]) -> Path:
    text = to_yaml(document)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
