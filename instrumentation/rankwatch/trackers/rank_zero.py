"""What rank 0 tells experiment trackers of its run, when its process exits."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import environment
from rankwatch.conventions.vocabulary import TrackerMetric, TrackerTag
from rankwatch.run import Run
from rankwatch.trackers.note import SUFFIX
from rankwatch.trackers.watching import Facts, TrackerWatch, dashboard_url
from rankwatch.variables import is_on

_watch: TrackerWatch | None = None
"""Of the run that this process started last."""


def watch_trackers(run: Run, writer: Writer, env: Mapping[str, str]) -> None:
    """Look for trackers from now on, unless that is turned off. Raises OSError."""
    global _watch
    if _watch is not None:
        _watch.stop()
        _watch = None
    if not is_on(environment.TRACKERS, env):
        return
    grafana = env.get(environment.DASHBOARD_URL, "")
    began = time.monotonic()

    def facts() -> Facts:
        return _facts(run, writer, grafana, time.monotonic() - began)

    _watch = TrackerWatch(*writer.beside(SUFFIX), facts, run._failures.note)
    run.after_steps(_watch.peek)


def _facts(run: Run, writer: Writer, grafana: str, seconds: float) -> Facts:
    name, completed = run.identity.run, writer.integers[Now.STEPS_COMPLETED]
    tags = {TrackerTag.RUN.value: name}
    if grafana:
        tags[TrackerTag.DASHBOARD_URL.value] = dashboard_url(grafana, name)
    if not completed or seconds <= 0.0:
        return Facts(tags, {}, -1)
    goodput = min(1.0, run._steps.seconds / seconds)
    metrics = {
        TrackerMetric.GOODPUT.value: goodput,
        TrackerMetric.STEP_SECONDS.value: run._steps.seconds / completed,
        TrackerMetric.STEPS_PER_SECOND.value: completed / seconds,
    }
    return Facts(tags | {TrackerTag.GOODPUT.value: f"{goodput:.3f}"}, metrics, run._steps.current)
