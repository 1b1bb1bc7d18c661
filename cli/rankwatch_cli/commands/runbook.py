"""`rankwatch runbook`: print the runbook of an alert, with the labels of a firing one in its commands."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rankwatch.settings import SentenceParser
from rankwatch.untrusted.http_client import ask_by_proxies
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.options import seconds_above_zero
from rankwatch_cli.output import show

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "runbooks", _PACKAGE.parents[1] / "runbooks")
"""Of an installation, and of a clone."""
_PREFIX = "Rankwatch"
_MOST_BYTES = 16 << 20
_MOST_NAME, _MOST_NAMES = 80, 5
"""Characters of a name, and names, in an error."""
_MOST_DESCRIBED = 20
_ASSIGNMENT = re.compile(r"(?<=\s)([A-Z_]+)=(\S+)")
_FENCE = re.compile(r"^( *)```(\w*)")
_PICTURE = re.compile(r"^!\[[^\]]*\]\([^)]+\)\n\n?", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_LABELS: Mapping[str, str] = {"FS_PATH": "path"}
"""Variable of a runbook -> the label that fills it, where it is not the name in small letters."""


@dataclass(frozen=True, kw_only=True)
class FiringAlert:
    """One alert, as Alertmanager or Prometheus describes it."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    since: str
    """When it began, as it was written; empty where that is not known."""
    prometheus: str
    """Root URL of the Prometheus that raised it; empty where that is not known."""

    def value_of(self, variable: str) -> str:
        """Return what the alert has for a variable of the runbook; empty where it has nothing."""
        if variable == "PROMETHEUS":
            return self.prometheus
        name = _LABELS.get(variable, variable.lower())
        return self.labels.get(name) or self.annotations.get(name, "")


def main(arguments: Sequence[str]) -> int:
    """Print the page, or the list of pages; returns 0. Raises UserError for input that cannot be used."""
    given = _parser().parse_args(arguments)
    pages = shipped_pages()
    alerts = _given_alerts(given)
    name = given.name or (alerts[0].labels["alertname"] if alerts else "")
    if not name:
        if given.alertmanager is not None:
            raise UserError("--alertmanager needs the name of an alert")
        show(*pages)
        return 0
    name = _known(name, pages)
    alerts = [each for each in alerts if _is_of(each, name)]
    if given.alertmanager is not None:
        alerts = _firing(given.alertmanager, name, given.timeout_seconds)
        if not alerts:
            show(f"No alert {name} fires at this Alertmanager.", "")
    show(*_lines(text_of(pages[name]), alerts))
    return 0


def shipped_pages() -> dict[str, Path]:
    """Return the page of each alert. Raises UserError where no page is installed."""
    for folder in _FOLDERS:
        found = {path.stem: path for path in sorted(folder.glob(f"{_PREFIX}*.md"))}
        if found:
            return found
    raise UserError("the runbooks are not installed")


def text_of(page: Path) -> str:
    """Drop the pictures of a page, which are not installed; what they show stands below them in words."""
    return _PICTURE.sub("", page.read_text(encoding="utf-8"))


def _known(name: str, pages: Mapping[str, Path]) -> str:
    """Return a name's page; it may lack the prefix or differ in case. Raises UserError with near ones."""
    wanted = name.lower().removeprefix(_PREFIX.lower())
    short = {each.removeprefix(_PREFIX).lower(): each for each in pages}
    if wanted in short:
        return short[wanted]
    near = [short[each] for each in get_close_matches(wanted, short, n=3)]
    near += [each for key, each in short.items() if wanted and wanted in key and each not in near][:3]
    advice = f"did you mean {' or '.join(near)}?" if near else "`rankwatch runbook` lists them"
    raise UserError(f"there is no runbook {name[:_MOST_NAME]!r}: {advice}")


def _given_alerts(given: argparse.Namespace) -> list[FiringAlert]:
    if given.alert is None:
        return []
    text = _standard_input() if given.alert == "-" else given.alert
    try:
        alerts = list(_alerts_in(json.loads(text)))
    except (ValueError, RecursionError):
        raise UserError("--alert is no JSON: expected an alert as Alertmanager sends it") from None
    if not alerts:
        raise UserError("--alert holds no alert: expected an object with labels, among them alertname")
    chosen = alerts if given.name is None else [each for each in alerts if _is_of(each, given.name)]
    if not chosen:
        others = sorted({each.labels["alertname"] for each in alerts})
        names = ", ".join(each[:_MOST_NAME] for each in others[:_MOST_NAMES])
        more = f" and {len(others) - _MOST_NAMES} more" if len(others) > _MOST_NAMES else ""
        raise UserError(f"--alert holds no alert {given.name[:_MOST_NAME]!r}, but {names}{more}")
    return chosen


def _standard_input() -> str:
    try:
        if sys.stdin is not None:  # closed by whoever started the command
            return sys.stdin.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        pass
    raise UserError("could not read an alert from standard input")


def _is_of(alert: FiringAlert, name: str) -> bool:
    plain = alert.labels["alertname"].lower().removeprefix(_PREFIX.lower())
    return plain == name.lower().removeprefix(_PREFIX.lower())


def _alerts_in(parsed: Any) -> Iterator[FiringAlert]:
    """Yield what fires in an alert, a list, what a webhook gets, or an answer of the API of Prometheus."""
    if isinstance(parsed, list):
        for each in parsed:
            yield from _alerts_in(each)
    elif _is_alert(parsed):
        labels = _texts(parsed["labels"])
        if labels.get("alertname") and parsed.get("status") != "resolved":
            yield FiringAlert(
                labels=labels,
                annotations=_texts(parsed.get("annotations")),
                since=printable(str(parsed.get("startsAt") or parsed.get("activeAt") or "")),
                prometheus=_root(parsed.get("generatorURL")),
            )
    elif isinstance(parsed, dict):
        for name in ("alerts", "data"):
            yield from _alerts_in(parsed.get(name))


def _is_alert(parsed: Any) -> bool:
    return isinstance(parsed, dict) and isinstance(parsed.get("labels"), dict)


def _texts(table: Any) -> dict[str, str]:
    """Take out what would steer a terminal: anybody who can reach Alertmanager writes alerts."""
    if not isinstance(table, dict):
        return {}
    return {printable(str(key)): printable(str(value)) for key, value in table.items()}


def _root(link: Any) -> str:
    """Return what stands before the page in a link such as http://prometheus:9090/graph?g0.expr=..."""
    parts = _url(printable(link)) if isinstance(link, str) else None
    if parts is None:
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path.removesuffix('/graph').rstrip('/')}"


def _url(text: str) -> urllib.parse.SplitResult | None:
    """Return the parts of a URL; None if it is none of a web server."""
    try:
        parts = urllib.parse.urlsplit(text)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:  # a port or an IPv6 address that is none
        return None


def _firing(url: str, name: str, timeout_seconds: float) -> list[FiringAlert]:
    """Return the alerts of that name that fire, the oldest first. Raises UserError."""
    if not url.isascii() or not url.isprintable() or set(" ?#@") & set(url) or _url(url) is None:
        raise UserError("--alertmanager is no URL such as http://alertmanager:9093")
    asked = urllib.parse.urlencode({"filter": f'alertname="{name}"', "active": "true"})
    address = f"{url.rstrip('/')}/api/v2/alerts?{asked}"

    try:
        reply = ask_by_proxies(address, seconds=timeout_seconds, most_bytes=_MOST_BYTES)
        if reply.status >= 300:
            status = f"{reply.status}{', a redirect, which is not followed' if reply.status < 400 else ''}"
            raise UserError(f"could not ask {url} for alerts: it answers with status {status}")
        parsed = json.loads(reply.body)
    except TimeoutError:
        raise UserError(f"could not ask {url} for alerts: no answer within {timeout_seconds:g} s") from None
    except (OSError, HTTPException) as error:
        raise UserError(f"could not reach {url}: {error}") from None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, list) or not all(map(_is_alert, parsed)):
        raise UserError(f"could not ask {url} for alerts: it is no Alertmanager")
    return sorted((each for each in _alerts_in(parsed) if _is_of(each, name)), key=lambda each: each.since)


def _lines(page: str, alerts: Sequence[FiringAlert]) -> Iterator[str]:
    """Yield the page as plain text: commands are indented and ready to copy, output stands behind a bar."""
    for each in alerts[:_MOST_DESCRIBED]:
        yield from _described(each)
    if len(alerts) > 1:
        shown = f" The first {_MOST_DESCRIBED} are shown." if len(alerts) > _MOST_DESCRIBED else ""
        yield from (f"{len(alerts)} alerts fire.{shown} The commands are for the first one.", "")
    inside, margin = False, ""
    for line in page.splitlines():
        fence = _FENCE.match(line)
        if fence:
            inside = not inside
            margin = "    | " if fence[2] == "text" else "    "
        elif inside:
            exported = alerts and line.lstrip().startswith("export ")
            yield f"{margin}{_filled(line, alerts[0]) if exported else line}"
        elif line.startswith("#"):
            title = line.lstrip("# ")
            yield from (title, ("=" if line.startswith("# ") else "-") * len(title))
        else:
            yield _LINK.sub(r"\1", line)


def _described(alert: FiringAlert) -> Iterator[str]:
    since = f" since {alert.since}" if alert.since else ""
    yield f"FIRING{since}: {alert.labels['alertname']}"
    labels = (f"{name}={value}" for name, value in alert.labels.items() if name != "alertname")
    yield f"  {'  '.join(labels)}"
    for name in ("description", "dashboard_url"):
        if alert.annotations.get(name):
            yield f"  {alert.annotations[name]}"
    yield ""


def _filled(line: str, alert: FiringAlert) -> str:
    """Fill in values, quoted for the shell; what the alert does not name stays as an example, but for the
    cluster: series of a cluster without a name have no such label."""

    def value(found: re.Match[str]) -> str:
        given = alert.value_of(found[1])
        return f"{found[1]}={shlex.quote(given)}" if given or found[1] == "CLUSTER" else found[0]

    return _ASSIGNMENT.sub(value, line)


def _parser() -> SentenceParser:
    parser = SentenceParser(
        prog="rankwatch runbook",
        description="Print the runbook of an alert as plain text. With a firing alert its labels stand in "
        "the commands. Without a name and an alert, list the runbooks.",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="name of the alert; `Rankwatch` and case may be left out"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--alert",
        metavar="JSON",
        help="a firing alert as Alertmanager or Prometheus gives it, or what a webhook receives; - reads it "
        "from standard input",
    )
    source.add_argument(
        "--alertmanager", metavar="URL", help="ask this Alertmanager for firing alerts of that name"
    )
    parser.add_argument(
        "--timeout-seconds",
        type=seconds_above_zero,
        default=10.0,
        metavar="SECONDS",
        help="longest wait for an answer",
    )
    return parser
