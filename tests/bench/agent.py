"""Part `agent`: CPU, memory and scrapes of an agent with 8 ranks at 20 steps per second."""

from __future__ import annotations

from pathlib import Path

from rankwatch.conventions.metrics import metric
from support.servers.spans import span_receiver

from .exporters import (
    WINDOW_INTERVAL_SECONDS,
    Exporter,
    Limits,
    Window,
    node_exporter,
    node_exporter_installed,
    peer_note,
    peer_rows,
    usage_rows,
    watch_window,
)
from .process_usage import MIB
from .processes import rankwatch_agent, temporary_directory
from .rank_load import step_load
from .result import BenchError, Result, Row, limited

RANKS = 8
STEPS_PER_SECOND = 20.0
LIMITS = Limits(cores=0.02, resident_bytes=80 * MIB, scrape_seconds=0.025)
CORES_SCRAPED_SELDOM = 0.012
_LEAST_STEPS = 0.9
"""Least share of the steps that the agent must count: without its load nothing is measured."""
_TRACED_WARM_UP_SECONDS = 15.0
"""Until the first steps are sent: they are held for 10 s."""


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if the agent does not answer, or does not see the steps."""
    warmup, often, seldom = (3.0, 5.0, WINDOW_INTERVAL_SECONDS) if quick else (10.0, 100.0, 120.0)
    with temporary_directory() as name:
        directory = Path(name)
        with step_load(directory, ranks=RANKS, steps_per_second=STEPS_PER_SECOND) as blackboxes:
            with rankwatch_agent(directory, blackboxes) as agent:
                windows = {
                    "agent": _watch(Exporter(*agent), warmup, often, 1.0),
                    "agent_scraped_seldom": _watch(Exporter(*agent), 0.0, seldom),
                }
            windows["agent_with_traces"], spans = _watch_with_traces(directory, blackboxes, seldom)
        pace = min(map(_steps_per_second, windows.values()))
        if peer := node_exporter_installed():
            with node_exporter(directory) as exporter:
                windows["peer"] = _watch(exporter, warmup, often, 1.0)
    usage = windows["agent"]
    return Result(
        title=f"Agent: {RANKS} ranks at {STEPS_PER_SECOND:g} steps/s",
        rows=(
            *usage_rows(usage, LIMITS),
            _seldom_row(windows["agent_scraped_seldom"]),
            _seldom_row(windows["agent_with_traces"], f", with traces: {spans} spans"),
            *(peer_rows(windows["peer"], LIMITS) if peer else ()),
        ),
        notes=(
            f"{usage.seconds:.0f} s after a warm-up; one scrape per second unless a row says otherwise "
            "(OpenMetrics, gzip); all collectors.",
            f"The agent counted {pace:.1f} steps/s; each rank is a process that writes 22 records per step.",
            "These ranks have no torch and no flight recorder, which the agent would query once a minute.",
            peer_note(known=peer),
        ),
        samples={name: window.as_json() for name, window in windows.items()},
    )


def _watch(
    exporter: Exporter, warmup_seconds: float, seconds: float, interval: float = WINDOW_INTERVAL_SECONDS
) -> Window:
    watched = {"it": exporter}
    return watch_window(
        watched, warmup_seconds=warmup_seconds, window_seconds=seconds, interval_seconds=interval
    )["it"]


def _watch_with_traces(directory: Path, blackboxes: Path, seconds: float) -> tuple[Window, int]:
    """An agent that sends traces at default sampling, and the number of spans that arrived. Raises BenchError
    where steps were chosen and none arrived."""
    own = directory / "traced"
    own.mkdir()
    with span_receiver() as receiver:
        flags = ("--traces-endpoint", receiver.url, "--state-directory", str(own))
        with rankwatch_agent(own, blackboxes, *flags) as agent:
            window = _watch(Exporter(*agent), _TRACED_WARM_UP_SECONDS, seconds)
        # Steps are chosen by chance, seldom: of the few thousand here it may be none.
        if window.last.total(metric("rankwatch_spans_total").name) and not receiver.spans:
            raise BenchError("could not measure the agent with traces: no span arrived")
        return window, len(receiver.spans)


def _steps_per_second(window: Window) -> float:
    """Steps per second of all ranks, as counted by the agent. Raises BenchError if it missed the load."""
    name = metric("rankwatch_steps_total").name
    pace = (window.last.total(name) - window.first.total(name)) / window.seconds
    expected = RANKS * STEPS_PER_SECOND
    if pace < _LEAST_STEPS * expected:
        raise BenchError(f"could not measure the agent: it counted {pace:.1f} steps/s of {expected:g}")
    return pace


def _seldom_row(window: Window, more: str = "") -> Row:
    what = f"CPU, of one core, at a scrape every {WINDOW_INTERVAL_SECONDS:g} s{more}"
    return limited(what, window.cores(), CORES_SCRAPED_SELDOM, "{:.2%}".format)
