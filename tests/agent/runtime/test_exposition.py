"""The snapshot as a scraper reads it."""

from __future__ import annotations

import gzip
import math
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rankwatch.conventions.metrics import metric
from rankwatch_agent.runtime.collector import Collection, Histogram, Series
from rankwatch_agent.runtime.exposition import MAX_BYTES, Exposition, constant_labels, fit_label_value
from rankwatch_agent.runtime.supervisor import Snapshot
from support.agent.process import ManualClock, load
from support.fuzzing import BUSY_MACHINE

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
CPU = metric("rankwatch_host_cpu_seconds_total")
LOAD = metric("rankwatch_host_cpus")
INFO = metric("rankwatch_agent_info")
DURATION = metric("rankwatch_step_duration_seconds")


def render(*collections: Collection, accept: str = "") -> str:
    exposition = Exposition(constant_labels(node="n1", cluster=""))
    return text(exposition, *collections, accept=accept)


def text(exposition: Exposition, *collections: Collection, accept: str = "") -> str:
    reply = exposition.render(Snapshot(collections, ()), accept=accept, accept_encoding="")
    return reply.body.decode()


def own(rendered: str) -> list[str]:
    """The lines without those of the process itself."""
    return [line for line in rendered.splitlines() if "process_" not in line]


def test_openmetrics() -> None:
    """Counters and infos are families without their suffix. The last line is EOF."""
    collection = Collection([Series(CPU, ("user",), 1.5), Series(INFO, ("2",), 1)])
    found = own(render(collection, accept=OPENMETRICS))
    assert "# TYPE rankwatch_host_cpu_seconds counter" in found
    assert "# UNIT rankwatch_host_cpu_seconds seconds" in found
    assert "# TYPE rankwatch_agent info" in found
    assert found[-1] == "# EOF"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        (f"{OPENMETRICS},text/plain;version=0.0.4;q=0.5", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text;version=1.x", "text/plain; version=0.0.4"),
        ("application/openmetrics-text;version=" + "9" * 5000, "text/plain; version=0.0.4"),
        ("\xff;;;=", "text/plain; version=0.0.4"),
    ],
)
def test_format_negotiation(accept: str, content_type: str) -> None:
    """The text format is the answer to a header that cannot be understood."""
    reply = Exposition({"node": "n1"}).render(Snapshot((), ()), accept=accept, accept_encoding="")
    assert reply.headers["Content-Type"].startswith(content_type)


def test_gzip() -> None:
    snapshot = Snapshot((Collection([Series(LOAD, (), 2)]),), ())
    reply = Exposition({"node": "n1"}).render(snapshot, accept="", accept_encoding="deflate, gzip;q=0.8")
    assert reply.headers["Content-Encoding"] == "gzip"
    assert b'rankwatch_host_cpus{node="n1"} 2.0\n' in gzip.decompress(reply.body)


def test_histogram() -> None:
    histogram = Histogram(DURATION, ("r",), ((0.5, 2), (math.inf, 3)), 1.75)
    found = own(render(Collection(histograms=[histogram])))
    assert found[2:] == [
        'rankwatch_step_duration_seconds_bucket{le="0.5",node="n1",run="r"} 2.0',
        'rankwatch_step_duration_seconds_bucket{le="+Inf",node="n1",run="r"} 3.0',
        'rankwatch_step_duration_seconds_count{node="n1",run="r"} 3.0',
        'rankwatch_step_duration_seconds_sum{node="n1",run="r"} 1.75',
    ]


def test_metric_of_two_collectors() -> None:
    """Prometheus refuses a family that appears twice."""
    first = Collection([Series(CPU, ("user",), 1), Series(LOAD, (), 1)])
    found = own(render(first, Collection([Series(CPU, ("idle",), 2)])))
    assert [line for line in found if line.startswith("# TYPE rankwatch_host_cpu_")] == [
        "# TYPE rankwatch_host_cpu_seconds_total counter"
    ]
    assert found[3] == 'rankwatch_host_cpu_seconds_total{mode="idle",node="n1"} 2.0'


def test_duplicate_series() -> None:
    """Two values that become equal once they are shortened would cost the whole scrape."""
    found = own(render(Collection([Series(CPU, ("a\x01",), 1), Series(CPU, ("a\x02",), 2)])))
    assert found[2:] == ['rankwatch_host_cpu_seconds_total{mode="a?",node="n1"} 1.0']


def test_later_scrapes() -> None:
    """All of a line is remembered but its value. Series that are gone are not shown."""
    exposition = Exposition(constant_labels(node="n1", cluster=""))
    text(exposition, Collection([Series(CPU, ("user",), 1), Series(CPU, ("idle",), 1)]))
    later = own(text(exposition, Collection([Series(CPU, ("idle",), 5), Series(CPU, ("irq",), 6)])))
    assert later[2:] == [
        'rankwatch_host_cpu_seconds_total{mode="idle",node="n1"} 5.0',
        'rankwatch_host_cpu_seconds_total{mode="irq",node="n1"} 6.0',
    ]


@pytest.mark.parametrize(
    "value", ['quo"te', "new\nline", "back\\slash", "x" * 10_000, "\udc80\x00", "", "\x85\u2028", "} 1"]
)
def test_odd_label_values_and_numbers(value: str) -> None:
    """An independent parser understands every line."""
    numbers = [math.nan, math.inf, -math.inf, 1e300, 5e-324, 2**63]
    collection = Collection([Series(CPU, (f"{value}{n}",), each) for n, each in enumerate(numbers)])
    for accept, parse in (("", parse_text), (OPENMETRICS, parse_openmetrics)):
        rendered = render(Collection([Series(INFO, (value,), 1)]), accept=accept)
        assert "rankwatch_agent_info" in {each.name for family in parse(rendered) for each in family.samples}
    samples = [each for family in parse_text(render(collection)) for each in family.samples]
    found = [each.value for each in samples if each.name == CPU.name]
    assert list(map(repr, found)) == [repr(float(each)) for each in numbers]


def test_process_metrics() -> None:
    """The usual process_* metrics carry the label of the node."""
    rendered = render()
    assert 'process_resident_memory_bytes{node="n1"}' in rendered
    assert "# TYPE process_cpu_seconds_total counter" in rendered


@pytest.mark.parametrize("value", ["", "run-7", 'say "hi" back\\slash', "größe 漢字"])
def test_fitting_label_value(value: str) -> None:
    """Quotes and backslashes are left to the format."""
    assert fit_label_value(value) == value


@pytest.mark.parametrize("character", ["\x00", "\n", "\x1b", "\x85", "\u202e", "\u2028", "\u200b", "\udc80"])
def test_characters_that_are_not_shown(character: str) -> None:
    """NUL ends the input of Prometheus's parser; a mark of direction makes a run look like another one."""
    assert fit_label_value(f"run-{character}7") == "run-?7"


def test_long_label_values() -> None:
    """Two values of 10 kB that begin alike stay distinct."""
    fitted = [fit_label_value("x" * 10_000 + end) for end in "ab"]
    assert fitted[0] != fitted[1]
    assert all(len(each.encode()) <= MAX_BYTES for each in fitted)


@BUSY_MACHINE
@given(st.text(st.characters(), max_size=400))
def test_any_label_value(value: str) -> None:
    """No input raises. A second pass changes nothing."""
    fitted = fit_label_value(value)
    assert len(fitted.encode("utf-8")) <= MAX_BYTES
    assert fit_label_value(fitted) == fitted


def test_shared_reply() -> None:
    """Clients that ask at about the same time share a reply, so that they cannot keep the agent busy."""
    clock, rendered = ManualClock(), []

    def snapshot() -> Snapshot:
        rendered.append(clock.now)
        clock.now += 2.0  # rendering takes as long
        return Snapshot((load(len(rendered)),), ())

    exposition = Exposition({"node": "n1"}, monotonic=clock)
    plain, text, compressed = Message(), Message(), Message()
    text["Accept"], compressed["Accept-Encoding"] = "text/plain", "gzip"
    first = exposition.serve(snapshot, plain)
    assert exposition.serve(snapshot, text) is first
    assert exposition.serve(snapshot, compressed) is not first
    clock.now += 9.0
    assert exposition.serve(snapshot, plain).body != first.body
    assert len(rendered) == 3
