"""The page on the rules: how to generate and load them, and every setting with its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from rankwatch.settings import toml_value
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rules import duration

_GENERATING = """\
Recording rules, alerts and an Alertmanager configuration are generated from one set of windows, thresholds
and selectors. What the defaults give lies in `alerts/generated` (installed: `share/rankwatch/alerts`); to
change a value, write it into a TOML file and generate again. This needs `pip install '.[alerts]'` in a clone.

```sh
python -m rankwatch_alerts generate --config rules.toml --output rules
```

`--print-config` prints the settings in force as such a file, and writes nothing. A flag wins over the file,
the file over the default. `--runbook-base-url` and `--dashboard-base-url` set the links in alerts.
`--time-scale X` (above 0, at most 1000) divides all times by X, to try rules out within minutes; no time
falls below the scrapes it needs. The dashboards (`pip install '.[dashboards]'`) take the same file,
so that their lines are the alerts' thresholds:

```sh
python -m rankwatch_dashboards generate --config rules.toml --output dashboards
```

A `rules.toml` for runs that save once in two hours:

```toml
checkpoint_age_budget_seconds = 9000.0
runbook_base_url = "https://wiki.example.com/rankwatch"
dashboard_base_url = "https://grafana.example.com"
```
"""

_LOADING = """\
## A complete `prometheus.yml`

`job_name` must be `agent_job`, and `scrape_interval` must be `scrape_interval_seconds`: the alert on absent
telemetry looks for that job, and windows hold a number of scrapes.
"""

_ALERTMANAGER = """\
`alertmanager.yml` groups pages by run and alert and tickets by run, and holds back what another alert
explains. `rankwatch.tmpl` beside it holds the texts of its notifications. Each owner has a receiver for pages
and one for tickets. They deliver nothing until the TOML file names a destination; secrets stay in files:

```toml
slack_api_url_file = "/etc/alertmanager/secrets/slack"
slack_channels = {page = "#on-call", page-platform = "#gpu-on-call", ticket = "#training-tickets"}
pagerduty_routing_key_files = {page = "/etc/alertmanager/secrets/pagerduty"}
email_to = {ticket-platform = "gpu-team@example.com"}
ticket_hours = "09:00-17:30"
ticket_time_zone = "Europe/Berlin"
owners = {RankwatchStraggler = "training"}
```
"""


def rules_reference(texts: Mapping[str, str]) -> Iterator[str]:
    """The page, below its title, in Markdown; `texts` holds the docstring of each field of RuleConfig."""
    defaults = RuleConfig()
    yield from (_GENERATING, _LOADING, "```yaml")
    yield from _prometheus(defaults)
    yield from ("```", "", _ALERTMANAGER)
    yield from ("## Settings", "", "| setting | default | meaning |", "| --- | --- | --- |")
    for name, value in asdict(defaults).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        shown = f"{value:g}" if number else toml_value(value)
        yield f"| `{name}` | `{shown}` | {' '.join(texts[name].split())} |"


def _prometheus(config: RuleConfig) -> Iterator[str]:
    interval = duration(config.scrape_interval_seconds)
    yield from ("global:", f"  evaluation_interval: {interval}")
    yield from ("scrape_configs:", f"  - job_name: {config.agent_job}", f"    scrape_interval: {interval}")
    yield "    static_configs:"
    yield '      - targets: ["node1:9477", "node2:9477"]'
    yield from ("  - job_name: prometheus  # itself, for RankwatchRulesFailing", "    static_configs:")
    yield '      - targets: ["localhost:9090"]'
    yield from ("rule_files:", "  - rules/*.rules.yml")
    yield from ("alerting:", "  alertmanagers:", "    - static_configs:")
    yield '        - targets: ["localhost:9093"]'
