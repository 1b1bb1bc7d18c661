"""Part `node`: what watching a whole GPU node costs, beside node_exporter on the same machine.

`python -m tests.bench.soak` is the long form.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rankwatch.conventions import metric

from .errors import BenchError
from .hang import Hang, watch_hang
from .node_exporter import NODE_EXPORTER, node_exporter, node_exporter_installed
from .node_load import GPUS, STEPS_PER_SECOND, Watched, watched_node
from .process_usage import MIB
from .result import Result, Row, limited
from .spread import quantile
from .vigil import LATENCY_SCRAPES, SCRAPE_INTERVAL_SECONDS, Vigil, keep_vigil
from .workplace import temporary_directory

CORES = 0.02
RESIDENT_BYTES = 96 * MIB
SCRAPE_SECONDS = 0.040
"""Of the 99th percentile."""
GROWTH_BYTES = 1 * MIB
"""Less than this between the first and the last third of a window is no growth: a heap is never still."""

HANG_INTERVALS = 3.0

WINDOW_SECONDS = 120.0
WARMUP_SECONDS = 45.0
"""Every collector but the slowest has run twice by then."""


def measure(*, quick: bool) -> Result:
    """Raises BenchError where an exporter cannot be run, or does not see its node."""
    return watch(
        window_seconds=15.0 if quick else WINDOW_SECONDS, warmup_seconds=15.0 if quick else WARMUP_SECONDS
    )


def watch(*, window_seconds: float, warmup_seconds: float) -> Result:
    """The agent on a whole node, and node_exporter where it is installed, over the same window."""
    with temporary_directory() as name:
        directory = Path(name)
        with watched_node(directory) as (agent, driver), ExitStack() as stack:
            exporters = {"agent": agent}
            if node_exporter_installed():
                exporters["peer"] = Watched(*stack.enter_context(node_exporter(directory)))
            vigils = keep_vigil(exporters, warmup_seconds=warmup_seconds, window_seconds=window_seconds)
            hang = watch_hang(agent, driver)
    _check_seen(vigils["agent"])
    peer_rows = _rows(vigils["peer"]) if "peer" in vigils else []
    return Result(
        title=f"Node: {GPUS} GPUs, {GPUS} RDMA ports, {GPUS} ranks at {STEPS_PER_SECOND:g} steps/s",
        rows=(
            *_rows(vigils["agent"]),
            *_hang_rows(hang),
            *(Row(f"node_exporter: {r.what}", r.measured, r.spread) for r in peer_rows),
        ),
        notes=_notes(vigils["agent"], peer_known=bool(peer_rows)),
        samples={name: _samples(vigil) for name, vigil in vigils.items()},
    )


def _check_seen(vigil: Vigil) -> None:
    """Raises BenchError where the load did not come: it would measure nothing."""
    assert vigil.last is not None
    for name, least in (
        ("rankwatch_gpu_up", GPUS),
        ("rankwatch_rdma_port_up", GPUS),
        ("rankwatch_gpu_pod_info", GPUS),
        ("rankwatch_blackboxes", GPUS),
    ):
        seen = vigil.last.total(metric(name).name)
        if seen < least:
            raise BenchError(f"could not measure the agent: {name} adds up to {seen:g}, expected {least}")


def _rows(vigil: Vigil) -> list[Row]:
    assert vigil.last is not None
    resident = max(each.resident_bytes for each in vigil.footprints)
    proportional = max(each.proportional_bytes for each in vigil.footprints)
    processes, scrapes = vigil.footprints[-1].processes, vigil.scrape_seconds
    spread = f"p50 {_ms(quantile(scrapes, 0.5))}, longest {_ms(max(scrapes))}"
    shared = f"{_mib(proportional)} with shared pages counted once; {processes} process(es)"
    return [
        limited("CPU, of one core", vigil.cores(), CORES, "{:.2%}".format),
        limited("resident memory, at most", resident, RESIDENT_BYTES, _mib, shared),
        limited("scrape, p99", quantile(scrapes, 0.99), SCRAPE_SECONDS, _ms, spread),
        limited("growth of memory", vigil.growth("proportional_bytes"), GROWTH_BYTES, _mib),
        limited("growth of threads", vigil.growth("threads"), 0, "{:g}".format, _extent(vigil, "threads")),
        limited(
            "growth of file descriptors",
            vigil.growth("file_descriptors"),
            0,
            "{:g}".format,
            _extent(vigil, "file_descriptors"),
        ),
        Row(
            "answer to a scrape",
            f"{vigil.last.samples():,} samples",
            f"{vigil.last.compressed_bytes:,} bytes",
        ),
    ]


def _hang_rows(hang: Hang) -> list[Row]:
    scrapes = hang.scrape_seconds
    spread = f"p50 {_ms(quantile(scrapes, 0.5))}, longest {_ms(max(scrapes))} of {len(scrapes)}"
    lost = len(hang.families_lost)
    return [
        limited("a hung driver call is reported, intervals", hang.intervals, HANG_INTERVALS, "{:.1f}".format),
        limited("scrape meanwhile, p99", quantile(scrapes, 0.99), SCRAPE_SECONDS, _ms, spread),
        limited(
            "other families lost meanwhile", lost, 0, "{:g}".format, ", ".join(sorted(hang.families_lost))
        ),
    ]


def _extent(vigil: Vigil, what: str) -> str:
    values = [getattr(each, what) for each in vigil.footprints]
    return f"{min(values)} to {max(values)}"


def _samples(vigil: Vigil) -> dict[str, object]:
    return {
        "window_seconds": vigil.seconds,
        "footprints": [each._asdict() for each in vigil.footprints],
        "scrape_seconds": vigil.scrape_seconds,
    }


def _notes(vigil: Vigil, *, peer_known: bool) -> tuple[str, ...]:
    peer = (
        "node_exporter, with its default collectors and no GPU or RDMA port, ran through the same window."
        if peer_known
        else f"No peer: {NODE_EXPORTER} is not installed (apt install {NODE_EXPORTER})."
    )
    return (
        f"{vigil.seconds:.0f} s after a warm-up; one scrape each {SCRAPE_INTERVAL_SECONDS:g} s (OpenMetrics, "
        f"gzip); then {LATENCY_SCRAPES} scrapes for the latency. All collectors; agent and worker added.",
        "The driver is a fake library under the real pynvml: what a real one takes comes on top.",
        "Growth is the median of the last third of the window less that of the first.",
        peer,
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _mib(size: float) -> str:
    return f"{size / MIB:.1f} MiB"
