"""Pages on the rules: how to generate and load them, every setting, and every alert."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from rankwatch.settings import toml_value
from rankwatch_alerts.config import RuleConfig
from rankwatch_alerts.rule_files import alert_rules
from rankwatch_alerts.rules import duration

_GENERATING = """\
Rules, Alertmanager configuration, dashboards, runbooks and reference are generated from one set of
objectives, thresholds, windows, names of labels, changes of single alerts and owners. What the defaults give
lies in `alerts/generated` and `dashboards/generated` (installed: `share/rankwatch`). To change a value, write
it into a TOML file and generate. This needs `pip install '.[alerts,dashboards]'` in a clone.

```sh
rankwatch generate --config rules.toml --output /etc/rankwatch
```

A `rules.toml` for runs that save once in two hours, in a Prometheus whose relabelling calls the cluster
`k8s_cluster` and the node `hostname`:

```toml
checkpoint_age_budget_seconds = 9000.0
goodput_objectives = {default = 0.8, production = 0.95}
label_names = {cluster = "k8s_cluster", node = "hostname"}
owners = {RankwatchRunSlow = "training"}
disabled_alerts = ["RankwatchGpusWasted/mfu"]
extra_labels = {team = "ml-platform"}
runbook_base_url = "https://wiki.example.com/rankwatch"
dashboard_base_url = "https://grafana.example.com"

[overrides]
"RankwatchRunLate/behind_plan" = {severity = "critical"}
"RankwatchRunSlow/jitter" = {for_seconds = 1800.0, labels = {tier = "2"}}
```

The folder then holds:

| part | read by |
| --- | --- |
| `prometheus/*.rules.yml` | Prometheus: `rule_files` |
| `prometheus/sharded`, with `prometheus_shards` | [several servers](cardinality.md#several-servers) |
| `alertmanager/alertmanager.yml`, and the texts of notifications beside it | Alertmanager: `--config.file` |
| `alertmanager/rankwatch-*.yml` | people: [an Alertmanager of others](adopting.md#files) |
| `kubernetes/alertmanager-config.yml` | the Prometheus operator: an AlertmanagerConfig |
| `grafana/provisioning`, `grafana/dashboards` | Grafana: `GF_PATHS_PROVISIONING` |
| `kubernetes/rules` | the Prometheus operator, with `prometheus_rule_labels` for its `ruleSelector` |
| `kubernetes/config-maps`, or `kubernetes/grafana-operator` | Grafana's sidecar, or its operator |
| `grafana-alerts/rankwatch.yml` | Grafana: `provisioning/alerting`, instead of `alerts.rules.yml` |
| `runbooks/*.md` | people: publish it where `runbook_base_url` is |
| `reference/*.md` | people: indicators, alerts and settings in force |
| `rankwatch.toml` | `rankwatch generate`: all settings in force |

`--own-rules FILE` adds a page to fill in for each alert of a rule file of yours. Pages that you have filled
in stay as they are; all else is written anew. If Grafana sees the folder elsewhere, as in a container, say
where by `--mounted-at`. `--print-config` prints the settings in force, and writes nothing.

`--time-scale X` (above 0, at most 1000) divides all times by X to try rules out within minutes; no time falls
below the scrapes it needs.
"""

_LOADING = """\
## A complete `prometheus.yml`

`job_name` must be `agent_job`, and `scrape_interval` must be `scrape_interval_seconds`: the alert on absent
telemetry looks for that job, and windows hold a number of scrapes.

```yaml
global:
  evaluation_interval: %(interval)s
scrape_configs:
  - job_name: %(job)s
    scrape_interval: %(interval)s
    static_configs:
      - targets: ["node1:9477", "node2:9477"]
  - job_name: prometheus  # itself, for RankwatchTelemetryAbsent, reason rules_failing
    static_configs:
      - targets: ["localhost:9090"]
rule_files:
  - rules/*.rules.yml
alerting:
  alertmanagers:
    - static_configs:
        - targets: ["localhost:9093"]
```
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
contact_email_domains = ["example.com"]
owners = {RankwatchRunSlow = "training"}
```
"""


def rules_reference(texts: Mapping[str, str]) -> Iterator[str]:
    """The page, below its title, in Markdown; `texts` holds the docstring of each field of RuleConfig."""
    defaults = RuleConfig()
    interval = duration(defaults.scrape_interval_seconds)
    loading = _LOADING % {"interval": interval, "job": defaults.agent_job}
    yield from (_GENERATING, loading, _ALERTMANAGER, "## Settings", "")
    yield from settings_reference(defaults, texts, column="default")


def settings_reference(config: RuleConfig, texts: Mapping[str, str], column: str = "value") -> Iterator[str]:
    """A table of the settings and their values, in Markdown; `texts` as above."""
    yield from (f"| setting | {column} | meaning |", "| --- | --- | --- |")
    for name, value in asdict(config).items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        shown = f"{value:g}" if number else toml_value(value)
        yield f"| `{name}` | `{shown}` | {' '.join(texts[name].split())} |"


def alerts_reference(config: RuleConfig) -> Iterator[str]:
    """A table of the alerting rules, in Markdown, in the order of triage."""
    yield from ("| alert | severity | owner | for | what it says |", "| --- | --- | --- | --- | --- |")
    for rule in alert_rules(config):
        reason = f", `{rule.reason}`" if rule.reason else ""
        link = f"[{rule.alert}](../runbooks/{rule.alert}.md)"
        severity, owner = rule.severity or "of the run", rule.labels["owner"]
        waits, says = duration(rule.for_seconds), rule.annotations["summary"]
        yield f"| {link}{reason} | {severity} | {owner} | {waits} | {says} |"
