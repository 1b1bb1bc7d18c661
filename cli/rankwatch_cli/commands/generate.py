"""`rankwatch generate`: one TOML file in, one folder out that Prometheus, Alertmanager and Grafana read."""

from __future__ import annotations

import errno
import json
import os
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rankwatch.errors import SettingError
from rankwatch.settings import SentenceParser, field_help, to_toml
from rankwatch_agent.runtime.errors import UserError
from rankwatch_alerts import (
    ALERT_NAMES,
    RuleConfig,
    alert_groups,
    load_config,
    write_rules,
    write_sharded,
)
from rankwatch_alerts.alertmanager import TEMPLATES_FILE
from rankwatch_alerts.alertmanager.merging import merged
from rankwatch_alerts.config import MAX_TIME_SCALE
from rankwatch_alerts.delivery import lacks_slack_url
from rankwatch_alerts.generation import (
    ALERTMANAGER_FILE,
    alerts_reference,
    settings_reference,
    write_alertmanager,
    write_text,
    write_texts,
    write_yaml,
)
from rankwatch_alerts.label_names import in_runbook
from rankwatch_cli.commands.runbook import shipped_pages, text_of
from rankwatch_cli.output import note, show, show_text

_SKELETON = """\
# {alert}

Written once by `rankwatch generate`, because {file} has this alert and no page did. It is yours: edit it.

## Do now

1. Who suffers?
   ```sh
   curl -sG $CURL_AUTH "$PROMETHEUS/api/v1/query" --data-urlencode 'query={one_line}' | jq .data.result
   ```
2. What ends the damage first?
3. After how many minutes to stop, and whom to call?

[What these lines need](README.md#before-you-begin).

## What it means

{summary}

```promql
{expression}
```

Impact: what does a user of the cluster lose while this goes on, and how fast?

## Causes by evidence

Each cause with the output that proves it, and what repairs it.

## Verify

The query above is empty, and stays empty for as long as `for`. Escalate to whom?
"""


def main(arguments: Sequence[str]) -> int:
    """Write the folder, print what is in it, return 0. Raises UserError or SettingError for wrong input."""
    given = _parser().parse_args(arguments)
    config = load_config(given.config).scaled(given.time_scale)
    if given.print_config:
        show_text(to_toml(config))
        return 0
    if given.output is None and given.merge_into is None:
        raise UserError("--output DIR is needed, the folder to write to, or --merge-into FILE")
    if given.merge_into is not None:
        _merge_into(config, given.merge_into)
    if given.output is None:
        return 0
    try:
        written = Counter(path.relative_to(given.output).parts[0] for path in _write(config, given))
    except OSError as error:
        raise UserError(f"could not write {error.filename}: {error.strerror}") from None
    if lacks_slack_url(config):
        alone = given.output / "alertmanager" / ALERTMANAGER_FILE
        note(f"{alone}: without slack_api_url_file Alertmanager refuses it; its parts work")
    for name, files in written.items():
        is_file = (given.output / name).is_file()
        show(str(given.output / name) if is_file else f"{given.output / name}: {files} files")
    return 0


def _write(config: RuleConfig, given: Namespace) -> Iterator[Path]:
    from rankwatch_alerts.checks import refuse_wrong
    from rankwatch_dashboards import write_dashboards
    from rankwatch_dashboards.forms import write_forms
    from rankwatch_dashboards.slis import slis_reference

    folder: Path = given.output
    refuse_wrong(config)
    own = dict(_own_alerts(given.own_rules))
    seen_as = given.mounted_at or folder.resolve()
    dashboards = write_dashboards(config, folder / "grafana" / "dashboards")
    yield from write_rules(config, folder / "prometheus")
    yield from write_sharded(config, folder / "prometheus" / "sharded")
    yield from write_alertmanager(config, folder / "alertmanager")
    yield from dashboards
    yield from write_forms(config, dashboards=dashboards, directory=folder)
    for name, document in _provisioning(config, seen_as).items():
        yield write_yaml(folder / "grafana" / "provisioning" / name / "rankwatch.yml", document)
    yield from _runbooks(config, folder / "runbooks", own)
    pages = {
        "slis": ("Service level indicators", slis_reference(config)),
        "alerts": ("Alerts", alerts_reference(config)),
        "settings": ("Settings", settings_reference(config, field_help(RuleConfig))),
    }
    for name, (title, lines) in pages.items():
        yield write_text(folder / "reference" / f"{name}.md", "\n".join((f"# {title}", "", *lines)) + "\n")
    yield write_text(folder / "rankwatch.toml", to_toml(config))


def _merge_into(config: RuleConfig, file: Path) -> None:
    """Put our parts into a configuration of Alertmanager, and the texts beside it, or change nothing."""
    try:
        alert_groups(config)  # refuses a name of an alert here, too, that no rule has
        text = file.read_bytes().decode()
        result = merged(text, config)
        if not (file.stat().st_mode & 0o222 and os.access(file, os.W_OK)):
            raise PermissionError(errno.EACCES, "the file is not writable")
        texts = _texts_beside(file, config)
        _overwrite(file, result.text, text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UserError(f"could not merge into {file}: {why}") from None
    except SettingError as error:
        raise UserError(str(error).replace("could not merge", f"could not merge into {file}", 1)) from None
    show(str(file), str(texts))
    if config.ticket_hours:
        when = f"{config.ticket_weekdays} {config.ticket_hours} {config.ticket_time_zone}"
        note(f"{file}: tickets go out {when} only (ticket_hours)")
    note(*(f"{file}: {each}" for each in result.notes))


def _texts_beside(file: Path, config: RuleConfig) -> Path:
    """Write the texts of notifications. A new file has the owner, group and mode of `file`, because
    Alertmanager must read it, too."""
    is_new = not (file.parent / TEMPLATES_FILE).exists()
    texts = write_texts(config, file.parent)
    if is_new:
        shutil.copymode(file, texts)
        with suppress(PermissionError):  # only root gives files away
            shutil.chown(texts, file.stat().st_uid, file.stat().st_gid)
    return texts


def _overwrite(file: Path, text: str, before: str) -> None:
    """Write in place: owner, group, mode and links stay. Puts back what was there if the disk is full."""
    try:
        file.write_text(text, encoding="utf-8", newline="")
    except OSError:
        file.write_text(before, encoding="utf-8", newline="")
        raise


def _provisioning(config: RuleConfig, seen_as: Path) -> Mapping[str, dict[str, object]]:
    """Return files that Grafana reads at its start: where the data are, and where the dashboards lie."""
    source = {
        "name": "Rankwatch",
        "uid": config.grafana_datasource_uid,
        "type": "prometheus",
        "access": "proxy",
        "url": config.prometheus_url,
    }
    provider = {
        "name": "rankwatch",
        "folder": config.grafana_folder,
        "type": "file",
        "allowUiUpdates": False,
        "options": {"path": str(seen_as / "grafana" / "dashboards")},
    }
    return {
        "datasources": {"apiVersion": 1, "datasources": [source]},
        "dashboards": {"apiVersion": 1, "providers": [provider]},
    }


def _runbooks(config: RuleConfig, folder: Path, own: Mapping[str, tuple[Path, Any]]) -> Iterator[Path]:
    """Yield a copy of each page, and a page to fill in for each own alert that has none yet."""
    pages = shipped_pages()
    readme = next(iter(pages.values())).with_name("README.md")
    yield write_text(folder / readme.name, text_of(readme))
    for alert, page in pages.items():
        yield write_text(folder / f"{alert}.md", in_runbook(text_of(page), config.label_names))
    for alert, (file, rule) in own.items():
        path = folder / f"{alert}.md"
        if not path.exists():
            yield write_text(path, _skeleton(alert, file, rule))


def _skeleton(alert: str, file: Path, rule: Mapping[str, Any]) -> str:
    expression = str(rule.get("expr", "")).strip()
    summary = (rule.get("annotations") or {}).get("summary", "What has happened when this alert fires?")
    one_line = " ".join(expression.split()).replace("'", "'\\''")
    return _SKELETON.format(
        alert=alert, file=file.name, summary=summary, expression=expression, one_line=one_line
    )


def _own_alerts(files: Sequence[Path]) -> Iterator[tuple[str, tuple[Path, Any]]]:
    """Yield the alerts of rule files of the user that are not among ours. Raises UserError."""
    for file in files:
        try:
            groups = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
            rules = [rule for group in groups for rule in group["rules"] if "alert" in rule]
            named = {str(rule["alert"]): rule for rule in rules}
        except OSError as error:
            raise UserError(f"could not read rules from {file}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, yaml.YAMLError):
            raise UserError(f"could not read rules from {file}: it is no rule file of Prometheus") from None
        if wrong := next((each for each in named if not each.isidentifier()), None):
            raise UserError(f"could not name a page after the alert {json.dumps(wrong)} in {file}")
        yield from ((name, (file, rule)) for name, rule in named.items() if name not in ALERT_NAMES)


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch generate",
        description="Write rules, Alertmanager configuration, dashboards, runbooks and reference of your "
        "settings into one folder that Prometheus, Alertmanager and Grafana can be pointed at as it is.",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write to, made where it is missing"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="TOML file of objectives, thresholds, windows, names of labels, changes of single alerts and "
        "addresses (default: all as shipped)",
    )
    parser.add_argument(
        "--own-rules",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="rule file of yours: each of its alerts gets a page to fill in, which is never overwritten; "
        "may be repeated",
    )
    parser.add_argument(
        "--mounted-at",
        type=Path,
        metavar="PATH",
        help="where Grafana sees the folder (default: where it is written)",
    )
    parser.add_argument(
        "--merge-into",
        type=Path,
        metavar="FILE",
        help="configuration of an Alertmanager: add route, receivers, inhibitions and time intervals of "
        "ours, or renew them, and leave all else as it is; needs no --output",
    )
    parser.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        metavar="X",
        help=f"divide all times by X, above 0 and at most {MAX_TIME_SCALE:g}, to try rules out",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print the settings in force as TOML, and write nothing"
    )
    return parser
