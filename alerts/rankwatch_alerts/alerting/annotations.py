"""The annotations every alert carries, and template fragments that look things up when it fires."""

from __future__ import annotations

from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.names import RUN_DEBUG_UID, Alert


def alert_annotations(
    config: RuleConfig, alert: Alert, *, summary: str, description: str, of_run: bool = True, **more: str
) -> dict[str, str]:
    """Summary and description with the links to the runbook and to the dashboard.

    `of_run` says whether the alert has the label `run`, so that the dashboard opens on that run.
    """
    variables = (
        "?var-cluster={{ $labels.cluster | urlquery }}&var-run={{ $labels.run | urlquery }}" if of_run else ""
    )
    return {
        "summary": summary,
        "description": description,
        **more,
        "runbook_url": f"{config.runbook_base_url}/{alert}",
        "dashboard_url": f"{config.dashboard_base_url}/d/{RUN_DEBUG_UID}{variables}",
    }


def matchers(*labels: str) -> str:
    """A template argument list for `printf`: `$labels.run $labels.rank`."""
    return " ".join(f"$labels.{each}" for each in labels)


def looked_up(query: str, of: tuple[str, ...], shown: str, none: str, *, by: str = "") -> str:
    """A fragment made from the answer to a query, looked up when the alert fires.

    `query` holds one `%q` per label of `of`; `shown` is the template of the answer, which is `.`;
    `none` stands for an empty answer; `by` is a label to sort by, where the answer may hold several series.
    """
    ordered = f' | sortByLabel "{by}"' if by else ""
    return (
        f"{{{{ with printf `{query}` {matchers(*of)} | query{ordered} }}}}"
        f"{shown}{{{{ else }}}}{none}{{{{ end }}}}"
    )


def listed(query: str, of: tuple[str, ...], shown: str, none: str, *, by: str = "") -> str:
    """A fragment that lists the series of a query, looked up when the alert fires.

    `query` holds one `%q` per label of `of`; `shown` is the template of one series; `none` stands for
    an empty answer; `by` is a label to sort by, where the query gives no order. Queries must be bounded
    (topk, count by): descriptions are read by people.
    """
    ordered = f' | sortByLabel "{by}"' if by else ""
    return (
        f"{{{{ with printf `{query}` {matchers(*of)} | query{ordered} }}}}"
        f"{{{{ range $index, $series := . }}}}{{{{ if $index }}}}, {{{{ end }}}}{shown}{{{{ end }}}}"
        f"{{{{ else }}}}{none}{{{{ end }}}}"
    )
