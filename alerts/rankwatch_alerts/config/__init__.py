"""Every setting of rules, notifications and dashboards: here what concerns all of them, and the objects and
servers that take what is generated."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rankwatch.settings import FieldError, build, expect, read_file, read_flags
from rankwatch_alerts.config.thresholds import DEFAULT_CLASS, DTYPES, Objectives, Thresholds
from rankwatch_alerts.delivery import HOST_PORT, Delivery, is_url
from rankwatch_alerts.label_names import wrong_names

SHORTEST_SECONDS = 0.001
"""Prometheus writes durations in whole milliseconds."""
LONGEST_SECONDS = 365 * 86400.0
"""A year: no run lasts longer."""


@dataclass(frozen=True, kw_only=True)
class Importing:
    """Labels and names that make an operator, a sidecar or Grafana take what is generated."""

    prometheus_rule_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the PrometheusRule objects. An operator takes those that its `ruleSelector` matches; that of
    kube-prometheus-stack wants `release = "NAME"`."""
    dashboard_labels: Mapping[str, str] = field(default_factory=lambda: {"grafana_dashboard": "1"})
    """Labels of the ConfigMaps of dashboards, by which the sidecar of Grafana finds them."""
    grafana_instance_labels: Mapping[str, str] = field(default_factory=lambda: {"dashboards": "grafana"})
    """Labels of the Grafana to which the Grafana operator gives the dashboards."""
    grafana_folder: str = "Rankwatch"
    """Folder of dashboards and alerts in Grafana."""
    grafana_datasource_uid: str = "rankwatch"
    """Uid of the Prometheus data source that alerts of Grafana ask."""

    def check_importing(self) -> None:
        """Raise FieldError for what Kubernetes or Grafana would refuse."""
        for name in ("prometheus_rule_labels", "dashboard_labels", "grafana_instance_labels"):
            given = getattr(self, name)
            valid = all(_KEY.fullmatch(key) and _VALUE.fullmatch(value) for key, value in given.items())
            expect(self, name, valid, "labels of Kubernetes")
        folder, uid = self.grafana_folder, self.grafana_datasource_uid
        plain = bool(folder) and folder.isprintable() and not set(folder) & set("$/\\")
        expect(self, "grafana_folder", plain, "a name without $ and slashes")
        expect(self, "grafana_datasource_uid", bool(_UID.fullmatch(uid)), "a uid of Grafana")


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Addresses of the servers, as they reach each other."""

    prometheus_shards: tuple[str, ...] = ()
    """Prometheus servers (`host:port`) that share the runs, where one is too small for all of them: at least
    two. Their configuration is then generated, too."""
    prometheus_fleet: str = ""
    """The Prometheus (`host:port`) beside these shards that has the machines and adds up runs."""
    alertmanager_address: str = "localhost:9093"
    """Where shards and fleet find Alertmanager (`host:port`)."""

    def check_servers(self) -> None:
        """Raise FieldError for what is no address, and for shards without a fleet server."""
        shards, fleet = self.prometheus_shards, self.prometheus_fleet
        addresses = all(map(HOST_PORT.fullmatch, shards)) and len({*shards, fleet}) > len(shards)
        expected = "host:port of two or more servers, none of them twice or prometheus_fleet"
        expect(self, "prometheus_shards", not shards or (addresses and len(shards) > 1), expected)
        expected = "host:port, because prometheus_shards names shards" if shards else "host:port, or nothing"
        valid = bool(HOST_PORT.fullmatch(fleet)) or not (shards or fleet)
        expect(self, "prometheus_fleet", valid, expected)
        alertmanager = bool(HOST_PORT.fullmatch(self.alertmanager_address))
        expect(self, "alertmanager_address", alertmanager, "host:port")


@dataclass(frozen=True, kw_only=True)
class RuleConfig(Thresholds, Objectives, Importing, Servers, Delivery):
    """Settings of the rules, the Alertmanager configuration and the dashboards.

    Times are in seconds. Raises FieldError if a value is out of range or two values contradict each other.
    """

    scrape_interval_seconds: float = 15.0
    """Time between two scrapes of an agent; also the interval of rule evaluation."""
    agent_job: str = "rankwatch"
    """Value of `job` on the scrape targets that are agents."""
    step_window_seconds: float = 300.0
    """Window of the mean time of a step; must hold several steps."""
    event_window_seconds: float = 900.0
    """How long a counted event (failed checkpoint, non-finite loss) keeps its alert firing."""

    keep_firing_seconds: float = 300.0
    """How long an alert goes on after its condition was last seen: an agent that restarts, or a node that is
    not scraped for a while, is no recovery. The same for all, so that no alert outlives the one that explains
    it."""
    page_least_ranks: Mapping[str, float] = field(
        default_factory=lambda: {"default": math.inf, "production": 1.0}
    )
    """Fewest ranks with which a run pages, by its class (`RANKWATCH_RUN_CLASS`); alerts of a smaller run are
    tickets. `default` is for all other classes, and for runs without one: they never page."""
    runbook_base_url: str = ""
    """Where runbooks/ is published; `/<AlertName>` is appended. Empty for no links."""
    dashboard_base_url: str = ""
    """Root URL of Grafana; `/d/<uid>` is appended. Empty for no links."""
    prometheus_url: str = "http://localhost:9090"
    """Where Grafana finds Prometheus: the data source in the folder of `rankwatch generate`."""
    rules_directory: str = ""
    """Folder with files of rules of one's own: copies of those in `alerts/rules` (installed:
    `rankwatch_alerts/shipped_rules`), changed, and further ones. Empty for those that are shipped."""
    label_names: Mapping[str, str] = field(default_factory=dict)
    """Other names of labels, by those of rankwatch: `{cluster = "k8s_cluster", node = "hostname"}` where a
    relabelling of Prometheus gives them. Rules, routes, dashboards and runbooks take them."""

    group_wait_seconds: float = 30.0
    """Time Alertmanager waits for further alerts of a run before it notifies."""
    group_interval_seconds: float = 300.0
    """Time before it notifies of new tickets in a group it has already notified of."""
    page_group_interval_seconds: float = 60.0
    """The same for pages: a second cause must not wait behind the first."""
    repeat_interval_seconds: float = 14400.0
    """Time before it repeats an unchanged notification."""

    def __post_init__(self) -> None:
        """Refuse values with which a rule could never fire, or always would."""
        checked_below = {each.name for part in (Delivery, Importing, Servers) for each in fields(part)}
        for name, value in asdict(self).items():
            if name in checked_below:
                continue
            if isinstance(value, int | float):
                self._check_number(name, value)
            elif name == "page_least_ranks":
                self._check_classes(name, math.inf, "numbers above 0")
            elif name.endswith("_objectives"):
                self._check_classes(name, 1, "shares above 0 and below 1")
            elif name == "label_names":
                expected = "labels of rankwatch, each with a new name that no other label has"
                expect(self, name, not wrong_names(value), expected)
            elif name == "mfu_dtype":
                expect(self, name, value in DTYPES, f"one of {', '.join(DTYPES)}")
            elif name == "rules_directory":
                expect(self, name, not value or Path(value).is_dir(), "an existing folder")
            elif name.endswith("_url"):
                expected = "an http(s) URL without template braces, query and fragment"
                expect(self, name, is_url(value) or (not value and name in _OPTIONAL_URLS), expected)
            else:
                expect(self, name, bool(_JOB.fullmatch(value)), "a name of letters, digits and _ . / : -")
        self.check_delivery()
        self.check_importing()
        self.check_servers()
        scrapes = 4 * self.scrape_interval_seconds
        expected = f"at least 4 scrape intervals ({scrapes})"
        expect(self, "step_window_seconds", self.step_window_seconds >= scrapes, expected)
        for name, shorter in _LONGER:
            least = getattr(self, shorter)
            expect(self, name, getattr(self, name) > least, f"more than {shorter} ({least})")
        self.check_objectives()

    @property
    def fresh_seconds(self) -> float:
        """How old the last sample of a series that counts as present may be: `missed_seconds`, and at least
        four scrapes."""
        return max(self.missed_seconds, 4 * self.scrape_interval_seconds)

    def _check_classes(self, name: str, limit: float, numbers: str) -> None:
        """Limit itself only counts as a value where it is infinite."""
        classes: Mapping[str, float] = getattr(self, name)
        named = DEFAULT_CLASS in classes and all(map(_CLASS.fullmatch, classes))
        within = all(0 < each < limit or each == limit == math.inf for each in classes.values())
        expect(self, name, named and within, f"names of classes, among them {DEFAULT_CLASS}, with {numbers}")

    def _check_number(self, name: str, value: float) -> None:
        expect(self, name, 0 < value < math.inf, "a number above 0")
        if name.endswith("_seconds"):
            expected = f"a number of seconds from {SHORTEST_SECONDS} to {LONGEST_SECONDS:.0f}"
            expect(self, name, SHORTEST_SECONDS <= value <= LONGEST_SECONDS, expected)
        if name.endswith("_share") or name in _SHARES:
            expect(self, name, value < 1, "a share below 1")

    def scaled(self, time_scale: float) -> RuleConfig:
        """Return the same rules with all times divided by `time_scale`; thresholds stay.

        The scrape interval stays at or above one second (or as it was, if shorter), and each time holds the
        fewest scrapes that it works with.
        Raises FieldError unless `time_scale` is above 0 and at most MAX_TIME_SCALE (1000).
        """
        return replace(self, **scaled_times(vars(self), time_scale))

    @classmethod
    def for_demo(cls) -> RuleConfig:
        """Return the rules for a run of minutes: one-second scrapes, all times divided by 60.

        The checkpoint budget is scaled less: a demo need not save every minute, or may save after every few
        steps. Its runs are small, and page; its tickets are delivered at all hours.
        Half a minute on shared CPUs shows nothing of how far ranks differ, so their threshold does not fall.
        All parts read one clock, which need not have a time daemon: the kernel's bound is then 16 s.
        """
        scaled = cls().scaled(60)
        return replace(
            scaled,
            checkpoint_age_budget_seconds=600.0,
            checkpoint_write_skew_seconds=1.0,
            checkpoint_blocking_share=0.75,
            page_least_ranks={DEFAULT_CLASS: 1.0},
            ticket_hours="",
            straggler_least_residual=scaled.straggler_residual,
            clock_error_seconds=60.0,
        )


_SHARES = (
    *("straggler_least_residual", "straggler_most_spread", "straggler_wait_ratio", "straggler_cost"),
    *("straggler_gpu_difference", "cause_cost", "unequal_batches_sigma", "unequal_batches_correlation"),
    *("pcie_load", "goodput_fast_budget", "goodput_slow_budget", "success_page_chance"),
)
"""Shares whose name does not say so."""
_LONGER = (
    ("absence_lookback_seconds", "absence_window_seconds"),
    ("rules_failing_window_seconds", "slo_interval_seconds"),
    ("goodput_window_seconds", "goodput_interval_seconds"),
    ("interval_advice_window_seconds", "goodput_window_seconds"),
    ("goodput_slow_window_seconds", "goodput_fast_window_seconds"),
    ("slo_period_seconds", "goodput_slow_window_seconds"),
    ("straggler_for_seconds", "step_window_seconds"),
    ("cause_for_seconds", "step_window_seconds"),
    ("network_baseline_seconds", "network_min_baseline_seconds"),
    ("straggler_history_seconds", "straggler_min_history_seconds"),
)
"""Times, each with one that must be shorter."""
_OPTIONAL_URLS = ("runbook_base_url", "dashboard_base_url")
_NAME = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}")
_VALUE = re.compile(rf"({_NAME})?")
_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_CLASS = re.compile(r"[\w.=@:+-]{1,32}", re.ASCII)
_JOB = re.compile(r"[\w./:-]+", re.ASCII)


def load_config(file: Path | None, flags: Mapping[str, Any] = MappingProxyType({})) -> RuleConfig:
    """Return the settings in force: flags win over the TOML file, the file over defaults. Raises
    SettingError.

    `flags` maps field names to the values given; other names in it are left out.
    """
    given = {} if file is None else read_file(RuleConfig, file)
    return build(RuleConfig, given | read_flags(RuleConfig, flags)).values


MAX_TIME_SCALE = 1000.0
"""Largest divisor of times."""
_LEAST_SCRAPE_SECONDS = 1.0

_SCRAPES = """
  1  goodput_interval ticket_interval group_wait
  2  stall_for confirm checkpoint_for group_interval page_group_interval
  4  node_silent missed cost_for run_failed_for slo_interval
  8  behind_plan_for keep_firing
 10  step_window stall_floor watchdog_timeout data_skew_for absence_window
 12  straggler_for cause_for
 15  event_window loss_for gpu_idle_for absence_for agent_down_for collector_for
 20  ended_shown pace_window
 30  straggler_min_history network_min_baseline memory checkpoint_age_budget
     checkpoint_overlap_window preemption_window startup_least startup_shown absence_lookback
     rules_failing_window link_flap_window disk_history disk_page
 40  objective_window success_page_window
 60  stall_fallback goodput_window checkpoint_slow_window startup_budget goodput_fast_window
     disk_ticket repeat_interval
 90  straggler_history network_baseline node_memory
120  goodput_slow_window ticket_repeat_interval
240  interval_advice_window startup_window slo_period
"""
_LEAST_SCRAPES = {
    f"{name}_seconds": int(number)
    for number, names in re.findall(r"(\d+)([a-z_\s]+)", _SCRAPES)
    for name in names.split()
}
"""Fewest scrapes that each time holds. The longer times survive lost scrapes, and agents and Prometheus that
start in either order."""


def scaled_times(settings: Mapping[str, Any], time_scale: float) -> dict[str, Any]:
    """Return the settings that are times, divided by `time_scale`, each at least the scrapes it works with.

    Raises FieldError unless `time_scale` is above 0 and at most MAX_TIME_SCALE.
    """
    if not 0 < time_scale <= MAX_TIME_SCALE:
        raise FieldError("time_scale", time_scale, f"a number above 0 and at most {MAX_TIME_SCALE:g}")
    interval = settings["scrape_interval_seconds"]
    scrape = max(interval / time_scale, min(_LEAST_SCRAPE_SECONDS, interval))
    times = {
        name: max(settings[name] / time_scale, min(scrapes * scrape, settings[name]))
        for name, scrapes in _LEAST_SCRAPES.items()
    }
    return {"scrape_interval_seconds": scrape, **times}
