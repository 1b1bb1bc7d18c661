"""Links from a value to the next board: they carry cluster, run, node and rank, and the time shown."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard

from rankwatch_alerts import CHECKPOINTS_GOODPUT_UID, HARDWARE_UID, RUN_DEBUG_UID, RuleConfig
from rankwatch_alerts.adjustments import links


@dataclass(frozen=True, kw_only=True)
class Link:
    """Where a click on a value leads."""

    title: str
    url: str
    """May name labels of the value as `{label}`; each is filled in where the value is drawn."""
    labels: tuple[str, ...] = ()
    """The labels that `url` names."""
    new_tab: bool = False

    def of_series(self) -> dashboard.DashboardLink:
        """For a panel that draws series: labels are those of the series."""
        return self._built("${{__field.labels.{}}}")

    def of_row(self) -> dashboard.DashboardLink:
        """For a table: labels are columns of the row."""
        return self._built("${{__data.fields.{}}}")

    def _built(self, place: str) -> dashboard.DashboardLink:
        url = self.url
        for label in self.labels:
            url = url.replace(f"{{{label}}}", place.format(label))
        return dashboard.DashboardLink(self.title).url(url).target_blank(self.new_tab)


def opens(uid: str, title: str, *labels: str) -> Link:
    """A board that opens on the values of these labels; without labels, on what this board shows.

    The cluster is the one that this board shows: not all series have that label.
    """
    chosen = "&".join(("${cluster:queryparam}", *(f"var-{each}={{{each}}}" for each in labels)))
    chosen = chosen if labels else "${__all_variables}"
    return Link(title=title, url=f"/d/{uid}?{chosen}&${{__url_time_range}}", labels=labels)


TO_RUN = opens(RUN_DEBUG_UID, "Debug this run", "run")
TO_RANK = opens(RUN_DEBUG_UID, "Debug this rank", "run", "rank")
TO_CHECKPOINTS = opens(CHECKPOINTS_GOODPUT_UID, "Checkpoints and goodput of this run", "run")
TO_NODE = opens(HARDWARE_UID, "Hardware of this node", "node")
TO_GPU = opens(HARDWARE_UID, "Hardware of this gpu", "node", "gpu")


TO_TRACKER = Link(title="Experiment tracker", url="${__field.labels.tracker_url:raw}", new_tab=True)


def to_runbook(config: RuleConfig) -> Link | None:
    """The page of the alert that a row names; None without `runbook_base_url`."""
    urls = links("{alertname}", runbooks=config.runbook_base_url)
    labels = ("alertname",)
    return Link(title="Runbook", url=urls["runbook_url"], labels=labels, new_tab=True) if urls else None
