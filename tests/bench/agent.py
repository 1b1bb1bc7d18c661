"""Part `agent`: CPU, memory and scrapes of an agent with 8 ranks at 20 steps per second."""

from __future__ import annotations

from pathlib import Path

from rankwatch.conventions.metrics import metric
from support.servers.spans import span_receiver

from .exporters import NODE_EXPORTER, Effort, Exporter, Usage, node_exporter, node_exporter_installed, watch
from .process_usage import MIB, mib, ms
from .processes import rankwatch_agent, temporary_directory
from .rank_load import step_load
from .result import BenchError, Result, Row, limited, quantile

RANKS = 8
STEPS_PER_SECOND = 20.0
CORES, CORES_SCRAPED_SELDOM = 0.02, 0.012
RESIDENT_BYTES = 80 * MIB
SCRAPE_SECONDS = 0.025
"""Of the 99th percentile."""

_LEAST_STEPS = 0.9
"""Least share of the steps that the agent must count: without its load nothing is measured."""

FULL = Effort(warmup_seconds=10.0, scrapes=100)
QUICK = Effort(warmup_seconds=3.0, scrapes=5)
SELDOM = Effort(warmup_seconds=0.0, scrapes=8, interval_seconds=15.0)
"""As Prometheus mostly scrapes."""
QUICK_SELDOM = SELDOM._replace(scrapes=1)
_TRACED_WARM_UP_SECONDS = 15.0
"""Until the first steps are sent: they are held for 10 s."""


def measure(*, quick: bool) -> Result:
    """Run the part. Raises BenchError if the agent does not answer, or does not see the steps."""
    effort, seldom = (QUICK, QUICK_SELDOM) if quick else (FULL, SELDOM)
    with temporary_directory() as name:
        directory = Path(name)
        with step_load(directory, ranks=RANKS, steps_per_second=STEPS_PER_SECOND) as blackboxes:
            with rankwatch_agent(directory, blackboxes) as agent:
                usage = watch(Exporter(*agent), effort)
                scraped_seldom = watch(Exporter(*agent), seldom)
            traced, spans = _watch_with_traces(directory, blackboxes, seldom)
        pace = min(_steps_per_second(watched) for watched in (usage, scraped_seldom, traced))
        peer = _watch_node_exporter(directory, effort) if node_exporter_installed() else None
    seldom_rows = (_seldom_row(scraped_seldom), _seldom_row(traced, f", with traces: {spans} spans"))
    rows = (*_agent_rows(usage), *seldom_rows, *(_peer_rows(peer) if peer else ()))
    return Result(
        title=f"Agent: {RANKS} ranks at {STEPS_PER_SECOND:g} steps/s",
        rows=rows,
        notes=_notes(usage, pace, peer_known=peer is not None),
        samples={
            "agent": _samples(usage),
            "agent_scraped_seldom": _samples(scraped_seldom),
            "agent_with_traces": _samples(traced),
            "peer": _samples(peer) if peer else None,
        },
    )


def _watch_with_traces(directory: Path, blackboxes: Path, seldom: Effort) -> tuple[Usage, int]:
    """An agent that sends traces at default sampling, and the number of spans that arrived. Raises BenchError
    where steps were chosen and none arrived."""
    own = directory / "traced"
    own.mkdir()
    with span_receiver() as receiver:
        flags = ("--traces-endpoint", receiver.url, "--state-directory", str(own))
        with rankwatch_agent(own, blackboxes, *flags) as agent:
            usage = watch(Exporter(*agent), seldom._replace(warmup_seconds=_TRACED_WARM_UP_SECONDS))
        # Steps are chosen by chance, seldom: of the few thousand here it may be none.
        if usage.last.total(metric("rankwatch_spans_total").name) and not receiver.spans:
            raise BenchError("could not measure the agent with traces: no span arrived")
        return usage, len(receiver.spans)


def _watch_node_exporter(directory: Path, effort: Effort) -> Usage:
    with node_exporter(directory) as exporter:
        return watch(exporter, effort)


def _steps_per_second(usage: Usage) -> float:
    """Steps per second of all ranks, as counted by the agent. Raises BenchError if it missed the load."""
    name = metric("rankwatch_steps_total").name
    pace = (usage.last.total(name) - usage.first.total(name)) / usage.seconds
    expected = RANKS * STEPS_PER_SECOND
    if pace < _LEAST_STEPS * expected:
        raise BenchError(f"could not measure the agent: it counted {pace:.1f} steps/s of {expected:g}")
    return pace


def _samples(usage: Usage) -> dict[str, object]:
    return {
        "window_seconds": usage.seconds,
        "cpu_seconds": usage.cpu_seconds,
        "resident_bytes": usage.resident_bytes,
        "peak_bytes": usage.peak_bytes,
        "scrape_seconds": usage.scrape_seconds,
    }


def _agent_rows(usage: Usage) -> list[Row]:
    taken = usage.scrape_seconds
    middle, worst = ms(quantile(taken, 0.5)), ms(max(taken))
    return [
        limited("CPU, of one core", usage.cores(), CORES, "{:.2%}".format),
        limited(
            "resident memory", usage.resident_bytes, RESIDENT_BYTES, mib, f"peak {mib(usage.peak_bytes)}"
        ),
        limited("scrape, p99", quantile(taken, 0.99), SCRAPE_SECONDS, ms, f"p50 {middle}, longest {worst}"),
        Row("answer to a scrape", f"{usage.last.samples():,} samples", _size(usage)),
    ]


def _seldom_row(usage: Usage, more: str = "") -> Row:
    what = f"CPU, of one core, at a scrape every {SELDOM.interval_seconds:g} s{more}"
    return limited(what, usage.cores(), CORES_SCRAPED_SELDOM, "{:.2%}".format)


def _peer_rows(usage: Usage) -> list[Row]:
    return [Row(f"node_exporter: {row.what}", row.measured, row.spread) for row in _agent_rows(usage)]


def _notes(usage: Usage, pace: float, *, peer_known: bool) -> tuple[str, ...]:
    peer = (
        "node_exporter, with its default collectors, was watched in the same way after the agent."
        if peer_known
        else f"No peer: {NODE_EXPORTER} is not installed (apt install {NODE_EXPORTER})."
    )
    return (
        f"{usage.seconds:.0f} s after a warm-up; one scrape per second unless a row says otherwise "
        "(OpenMetrics, gzip); all collectors.",
        f"The agent counted {pace:.1f} steps/s; each rank is a process that writes 22 records per step.",
        "These ranks have no torch and no flight recorder, which the agent would query once a minute.",
        peer,
    )


def _size(usage: Usage) -> str:
    return f"{len(usage.last.text.encode()):,} bytes, {usage.last.compressed_bytes:,} compressed"
