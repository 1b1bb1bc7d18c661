"""A runbook has the fixed headings, commands to copy, the dashboard, and queries that work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankwatch_alerts.lint.counter_use import counter_use
from rankwatch_alerts.lint.expressions import parse
from rankwatch_alerts.lint.finding import Finding
from rankwatch_alerts.lint.known_metrics import known_metrics
from rankwatch_alerts.names import RUN_DEBUG_UID

HEADINGS = ("Meaning", "Impact", "Diagnosis", "Mitigation", "Verify")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_CURLED_QUERY = re.compile(r"--data-urlencode 'query=([^']*)'")


def runbook_page(alert: str, text: str) -> Iterator[Finding]:
    """Findings in the page of one alert."""
    if not text.startswith(f"# {alert}\n"):
        yield Finding("runbook-page", alert, f"the first line is not '# {alert}'")
    if tuple(_HEADING.findall(text)) != HEADINGS:
        yield Finding("runbook-page", alert, f"the headings are not {', '.join(HEADINGS)}")
    if RUN_DEBUG_UID not in text:
        yield Finding("runbook-page", alert, f"the dashboard {RUN_DEBUG_UID} is not named")
    blocks = _BLOCK.findall(text)
    if not any(language == "sh" for language, _ in blocks):
        yield Finding("runbook-page", alert, "there is no command to copy")
    for query in _queries(blocks):
        yield from _check_query(alert, query)


def _queries(blocks: list[tuple[str, str]]) -> Iterator[str]:
    """Queries of promql blocks and of curl commands in shell blocks; $VARIABLES are the reader's."""
    for language, body in blocks:
        if language == "promql":
            yield body
        elif language == "sh":
            yield from _CURLED_QUERY.findall(_joined(body))


def _joined(body: str) -> str:
    """Shell text in which a value spliced into a quoted query ('"$RUN"') is a plain word."""
    return re.sub(r"'\"\$\w+\"'", "x", body)


def _check_query(alert: str, query: str) -> Iterator[Finding]:
    try:
        tree = parse(query)
    except ValueError as error:
        yield Finding("runbook-page", alert, f"a query does not parse: {error}")
        return
    yield from known_metrics(alert, tree)
    yield from counter_use(alert, tree)
