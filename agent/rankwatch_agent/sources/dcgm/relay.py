"""Which sample of DCGM becomes which series: the GPU by its identity, the metric by the table of fields."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rankwatch.conventions import Metric, metric
from rankwatch_agent.runtime.collector import Series
from rankwatch_agent.sources.dcgm.fields import KNOWN_FIELDS, is_blank, old_name
from rankwatch_agent.sources.dcgm.samples import DcgmSample
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuInventory, normalise_bus_id

_FIELD = metric("rankwatch_dcgm_field")
_MIG_INFO = metric("rankwatch_gpu_mig_info")
_WHOLE_GPU = ""

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


class Relayed(NamedTuple):
    """What goes out."""

    series: tuple[Series, ...]
    unmatched: frozenset[str]
    """Devices in the answer that are no GPU known here."""
    adopted: frozenset[str]
    """Devices exported although NVML shows no GPU at all."""


def relay(samples: Iterable[DcgmSample], inventory: GpuInventory) -> Relayed:
    """Each value once, and none that NVML gives already: a value of a GPU that pods share is one value."""
    exported = inventory.exported()
    instances = _instances(exported)
    nvml_is_blind = not inventory.gpus()
    taken: dict[ExportedKey, Series] = {}
    unmatched: set[str] = set()
    adopted: set[str] = set()
    for sample in samples:
        device = sample.uuid if _UUID.fullmatch(sample.uuid) else normalise_bus_id(sample.pci_bus_id)
        gpu = _known_gpu(sample, inventory)
        if gpu is None and not (_UUID.fullmatch(device) or _BUS_ID.fullmatch(device)):
            continue  # a switch, a CPU, or a line without identity
        if gpu is None and not nvml_is_blind:
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
    """UUID of a MIG instance by GPU and number of the GPU instance, where that has only one."""
    found: dict[tuple[str, str], str] = {}
    names = [label.value for label in _MIG_INFO.labels]
    for name, labels in exported:
        if name == _MIG_INFO.name:
            each = dict(zip(names, labels, strict=True))
            key = (each["gpu"], each["gpu_instance"])
            found[key] = each["mig"] if key not in found else _instance_name(each["gpu_instance"])
    return found


def _instance_name(gpu_instance: str) -> str:
    """What a MIG instance is called whose UUID is not known."""
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
    """A value without a metric for instances is of the device: lines of instances repeat it."""
    return (of_instance, (gpu, mig)) if mig and of_instance is not None else (whole, (gpu,))
