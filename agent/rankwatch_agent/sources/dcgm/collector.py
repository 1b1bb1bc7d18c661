"""Collector `dcgm`: relays from a dcgm-exporter on this node the values that NVML does not give.

A field with a metric of ours becomes that metric; every other field becomes rankwatch_dcgm_field.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rankwatch.conventions.metrics import Metric, metric
from rankwatch_agent.runtime.collector import Collection, Schedule, Series
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.sources.dcgm.client import DcgmSample, fetch, parse_answer, parse_endpoint
from rankwatch_agent.sources.dcgm.fields import KNOWN_FIELDS, all_names, is_blank, old_name
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuInventory, normalise_bus_id

logger = logging.getLogger(__name__)

_FIELD = metric("rankwatch_dcgm_field")
_MIG_INFO = metric("rankwatch_gpu_mig_info")
_WHOLE_GPU = ""

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_UNMATCHED = metric("rankwatch_dcgm_gpus_unmatched")

_ANSWER_SHARE = 0.8
"""Share of the collector's deadline that the exporter may use."""
_EMPTY_RUNS = 3
"""Runs without a GPU from NVML before a warning is logged: the first answer of a driver may take 20 s."""


class DcgmCollector:
    """Asks one endpoint; raises ConfigError at once where that is no URL.

    fields: by their names before or since DCGM 4.
    """

    name = "dcgm"

    def __init__(
        self, *, endpoint: str, fields: tuple[str, ...], inventory: GpuInventory, schedule: Schedule
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._endpoint = parse_endpoint(endpoint) if endpoint else None
        self._wanted = all_names(fields)
        self._inventory = inventory
        self._runs_without_nvml = 0
        self._log_limit = LogLimit()

    def collect(self) -> Collection:
        """Ask once; raises NotApplicable without an endpoint, CollectError without a usable answer."""
        if self._endpoint is None:
            raise NotApplicable("no dcgm_endpoint is set")
        body = fetch(self._endpoint, _ANSWER_SHARE * self.deadline_seconds)
        answer = parse_answer(body, self._wanted)
        if answer.fields == 0:
            # dcgm-exporter sends this for seconds while it reloads, and for ever if it started before DCGM.
            raise CollectError(f"could not use {self._endpoint}: the answer has no field of DCGM")
        if answer.cut:
            self._warn(f"{self._endpoint} sent more lines than are read; the rest is left out")
        relayed = relay(answer.samples, self._inventory)
        self._runs_without_nvml = self._runs_without_nvml + 1 if relayed.adopted else 0
        if self._runs_without_nvml >= _EMPTY_RUNS:
            self._warn(
                f"NVML shows no GPU; those in the answer of {self._endpoint} keep the names it gives them"
            )
        return Collection((*relayed.series, Series(_UNMATCHED, (), len(relayed.unmatched))))

    def _warn(self, message: str) -> None:
        if self._log_limit.allows(message):
            logger.warning("collector %s: %s", self.name, message)


class Relayed(NamedTuple):
    """The outcome of one answer."""

    series: tuple[Series, ...]
    unmatched: frozenset[str]
    """Devices in the answer that NVML does not show."""
    adopted: frozenset[str]
    """Devices exported under the names of dcgm-exporter, because NVML shows no GPU at all."""


def relay(samples: Iterable[DcgmSample], inventory: GpuInventory) -> Relayed:
    """Each value once, although dcgm-exporter repeats it for each pod; none that NVML gives already."""
    exported = inventory.exported()
    instances = _instances(exported)
    nvml_is_empty = not inventory.gpus()
    taken: dict[ExportedKey, Series] = {}
    unmatched: set[str] = set()
    adopted: set[str] = set()
    for sample in samples:
        device = sample.uuid if _UUID.fullmatch(sample.uuid) else normalise_bus_id(sample.pci_bus_id)
        gpu = _known_gpu(sample, inventory)
        if gpu is None and not (_UUID.fullmatch(device) or _BUS_ID.fullmatch(device)):
            continue  # a switch, a CPU, or a line without identity
        if gpu is None and not nvml_is_empty:
            unmatched.add(device)
            continue
        if gpu is None:
            gpu = device
            adopted.add(device)
        found = _series(sample, gpu, instances)
        if found is not None and (key := (found.metric.name, found.labels)) not in exported:
            taken.setdefault(key, found)
    return Relayed(tuple(taken.values()), frozenset(unmatched), frozenset(adopted))


def _known_gpu(sample: DcgmSample, inventory: GpuInventory) -> str | None:
    if _UUID.fullmatch(sample.uuid):
        known = inventory.by_uuid(sample.uuid)
    else:
        known = inventory.by_bus_id(sample.pci_bus_id) if sample.pci_bus_id else None
    return known.uuid if known is not None else None


def _instances(exported: Iterable[ExportedKey]) -> dict[tuple[str, str], str]:
    """(GPU, number of the GPU instance) -> UUID of the MIG instance, or its number where it has several."""
    found: dict[tuple[str, str], str] = {}
    names = [label.value for label in _MIG_INFO.labels]
    for name, labels in exported:
        if name == _MIG_INFO.name:
            each = dict(zip(names, labels, strict=True))
            key = (each["gpu"], each["gpu_instance"])
            found[key] = each["mig"] if key not in found else _instance_name(each["gpu_instance"])
    return found


def _instance_name(gpu_instance: str) -> str:
    """Stands for the UUID of a MIG instance where that is unknown."""
    return f"gpu_instance {gpu_instance}"


def _series(sample: DcgmSample, gpu: str, instances: Mapping[tuple[str, str], str]) -> Series | None:
    if is_blank(sample.value):
        return None
    mig = _WHOLE_GPU
    if sample.gpu_instance:
        mig = instances.get((gpu, sample.gpu_instance), _instance_name(sample.gpu_instance))
    known = KNOWN_FIELDS.get(old_name(sample.field))
    if known is None or sample.link:
        name = old_name(sample.field) + (f" link {sample.link}" if sample.link else "")
        return Series(_FIELD, (gpu, mig, name), sample.value)
    value = known.value(sample.value)
    if value is None:
        return None
    which, labels = _labels(known.metric, known.mig, gpu, mig)
    return Series(which, (*labels, *known.extra), value)


def _labels(whole: Metric, of_instance: Metric | None, gpu: str, mig: str) -> tuple[Metric, tuple[str, ...]]:
    """Metric and first labels. Without a metric for instances the value belongs to the whole GPU."""
    return (of_instance, (gpu, mig)) if mig and of_instance is not None else (whole, (gpu,))
