"""Names, units and instruments of the declared metrics over OTLP."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
from opentelemetry.semconv._incubating.metrics import hw_metrics, system_metrics

from rankwatch.conventions.metrics import METRICS, Kind, Label, Metric, metric
from rankwatch.conventions.opentelemetry import STANDARD, Instrument, OtelMetric, otel_metric, own_metric

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")
UNITS = {"1", "s", "By", "By/s", "Cel", "W", "J", "Hz", "{error}", "{packet}", "{cpu}"}
INSTRUMENTS = {
    Kind.COUNTER: {Instrument.COUNTER},
    Kind.GAUGE: {Instrument.GAUGE, Instrument.UP_DOWN_COUNTER},
    Kind.INFO: {Instrument.GAUGE},
    Kind.HISTOGRAM: {Instrument.HISTOGRAM},
}
ATTRIBUTES = ("cpu", "error", "exception", "hw", "k8s", "network", "system")
"""Of which the conventions have a module."""


TERMS: list[tuple[Metric, OtelMetric]] = [
    *((each, own_metric(each)) for each in METRICS),
    *((each, STANDARD[each.name]) for each in METRICS if each.name in STANDARD),
]


def test_standard_table() -> None:
    """Every entry names a declared metric and all its labels, so that renaming a metric updates its entry."""
    for name, terms in STANDARD.items():
        declared = set(metric(name).labels)
        used = {label for labels in terms.attributes.values() for label in labels} | set(terms.only)
        # Without one of its labels, two series would become one.
        assert used == declared, name


@pytest.mark.parametrize(("declared", "terms"), [pytest.param(*each, id=each[1].name) for each in TERMS])
def test_name_unit_and_instrument(declared: Metric, terms: OtelMetric) -> None:
    """The name is lower case with dots, the unit is UCUM, and the instrument fits the kind in Prometheus."""
    assert NAME.fullmatch(terms.name)
    assert terms.unit in UNITS
    assert terms.instrument in INSTRUMENTS[declared.kind]
    assert not terms.name.startswith("rankwatch.") or not terms.name.endswith(
        ("_seconds", "_bytes", "_ratio", "_celsius", "_watts", "_joules", "_hertz")
    )
    assert terms.instrument is not Instrument.COUNTER or not terms.name.endswith("_total")
    assert terms.description


def test_metrics_with_one_name() -> None:
    """They differ only in their attributes, so that they are one metric over OTLP without duplicate
    points."""
    by_name: dict[str, list[OtelMetric]] = {}
    for _, terms in TERMS:
        by_name.setdefault(terms.name, []).append(terms)
    for name, sharing in by_name.items():
        assert len({(each.instrument, each.unit, each.description) for each in sharing}) == 1, name
        apart = {(frozenset(each.attributes), frozenset(each.constants.items())) for each in sharing}
        assert len(apart) == len(sharing), name


def test_names_as_prefixes() -> None:
    """No name is a prefix of another. Backends that build trees of names could show only one of the two."""
    names = {terms.name for _, terms in TERMS}
    assert not {(one, other) for one in names for other in names if other.startswith(f"{one}.")}


def test_units() -> None:
    """Units move from the name into their field. Counted time and bytes become time and io, as in
    system.cpu.time and system.network.io."""
    names = {
        "rankwatch_gpu_activity_ratio": ("rankwatch.gpu.activity", "1"),
        "rankwatch_gpu_clock_hertz": ("rankwatch.gpu.clock", "Hz"),
        "rankwatch_step_phase_seconds_total": ("rankwatch.step.phase_time", "s"),
        "rankwatch_collective_bytes_total": ("rankwatch.collective.io", "By"),
        "rankwatch_steps_total": ("rankwatch.steps", "1"),
        "rankwatch_flight_recorder_pulls_total": ("rankwatch.flight_recorder.pulls", "1"),
    }
    for name, expected in names.items():
        terms = own_metric(metric(name))
        assert (terms.name, terms.unit) == expected


def test_ecc_errors() -> None:
    """Only one scope has the standard name. The other scope counts the same errors again."""
    ecc = metric("rankwatch_gpu_ecc_errors_total")
    for scope, name in (("volatile", "hw.errors"), ("aggregate", "rankwatch.gpu.ecc_errors")):
        given = {Label.GPU: "GPU-1", Label.KIND: "corrected", Label.SCOPE: scope}
        assert otel_metric(ecc, tuple(given[label] for label in ecc.labels)).name == name


def standard_metrics() -> dict[str, tuple[Instrument, str]]:
    """Instrument and unit of each metric that the semantic conventions create."""
    created: dict[str, tuple[Instrument, str]] = {}

    def noting(instrument: Instrument) -> Callable[..., None]:
        return lambda *, name, unit, **_: created.update({name: (instrument, unit)})

    meter = SimpleNamespace(
        create_counter=noting(Instrument.COUNTER),
        create_up_down_counter=noting(Instrument.UP_DOWN_COUNTER),
        create_gauge=noting(Instrument.GAUGE),
        create_observable_gauge=noting(Instrument.GAUGE),
    )
    for module in (hw_metrics, system_metrics):
        for name, create in vars(module).items():
            if name.startswith("create_"):
                # Observable instruments take callbacks as well.
                create(*(meter, ())[: create.__code__.co_argcount])
    return created


def constants(module: ModuleType) -> set[str]:
    names = [name for name in vars(module) if name[0].isalpha() and name.isupper()]
    return {value for name in names if "." in (value := getattr(module, name))}


def test_standard_metrics() -> None:
    """Standard names, instruments and units agree with the package opentelemetry-semantic-conventions."""
    standard = standard_metrics()
    for terms in STANDARD.values():
        assert standard.get(terms.name) == (terms.instrument, terms.unit), terms.name


def test_attributes() -> None:
    """They are standard or begin with `rankwatch.`. A later standard could give others another meaning."""
    package = "opentelemetry.semconv._incubating.attributes"
    modules = [import_module(f"{package}.{each}_attributes") for each in ATTRIBUTES]
    standard = {name for module in modules for name in constants(module)}
    for _, terms in TERMS:
        for attribute in (*terms.attributes, *terms.constants):
            assert attribute in standard or attribute.startswith("rankwatch."), attribute
