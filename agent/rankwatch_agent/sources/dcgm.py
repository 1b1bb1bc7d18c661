"""Collector `dcgm`: relays from a dcgm-exporter on this node the values that NVML does not give.

A field with a metric of ours becomes that metric; every other field becomes rankwatch_dcgm_field.

The exporter's answer is untrusted, bounded in size and time, and read line by line. dcgm-exporter does not
escape label values, so a pod's label can put a quote or a brace in the middle of a line and break a strict
parser. The labels that identify the GPU come first in every line and hold no quotes: only those are read.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Collection as Members
from collections.abc import Iterable, Iterator
from http.client import OK, HTTPException, IncompleteRead
from typing import NamedTuple
from urllib.parse import urlsplit

from rankwatch.settings import FieldError
from rankwatch.untrusted.http_client import ask
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, Series, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.runtime.logs import LogLimit
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.dcgm_fields import KNOWN_FIELDS, all_names, is_blank, old_name
from rankwatch_agent.sources.gpu.inventory import ExportedKey, GpuFinder, GpuInventory, normalise_bus_id
from rankwatch_agent.sources.shared import NodeShared

logger = logging.getLogger(__name__)

_WHOLE_GPU = ""

_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}")
_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")

_ANSWER_SHARE = 0.8
"""Share of the collector's deadline that the exporter may use."""
_EMPTY_RUNS = 3
"""Runs without a GPU from NVML before a warning is logged: the first answer of a driver may take 20 s."""


@source(interval_seconds=15.0, deadline_seconds=5.0)  # dcgm-exporter itself collects every 30 s by default
def dcgm(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    yield DcgmCollector(
        endpoint=config.dcgm_endpoint,
        fields=config.dcgm_fields,
        inventory=shared.inventory,
        schedule=schedule,
    )


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
        return Collection(
            (*relayed.series, sample("rankwatch_dcgm_gpus_unmatched", (), len(relayed.unmatched)))
        )

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
    """Take each value once, although dcgm-exporter repeats it for each pod; none that NVML gives already."""
    exported, gpus = inventory.exported(), inventory.gpus()
    finder = GpuFinder(gpus, exported)
    taken: dict[ExportedKey, Series] = {}
    unmatched: set[str] = set()
    adopted: set[str] = set()
    for each in samples:
        device = each.uuid if _UUID.fullmatch(each.uuid) else normalise_bus_id(each.pci_bus_id)
        gpu = _known_gpu(each, inventory)
        if gpu is None and not (_UUID.fullmatch(device) or _BUS_ID.fullmatch(device)):
            continue  # a switch, a CPU, or a line without identity
        if gpu is None and gpus:
            unmatched.add(device)
            continue
        if gpu is None:
            gpu = device
            adopted.add(device)
        found = _series(each, gpu, finder)
        if found is not None and (key := (found.metric.name, found.labels)) not in exported:
            taken.setdefault(key, found)
    return Relayed(tuple(taken.values()), frozenset(unmatched), frozenset(adopted))


def _known_gpu(sample: DcgmSample, inventory: GpuInventory) -> str | None:
    if _UUID.fullmatch(sample.uuid):
        known = inventory.by_uuid(sample.uuid)
    else:
        known = inventory.by_bus_id(sample.pci_bus_id) if sample.pci_bus_id else None
    return known.uuid if known is not None else None


def _series(found: DcgmSample, gpu: str, finder: GpuFinder) -> Series | None:
    if is_blank(found.value):
        return None
    mig = finder.instance(gpu, found.gpu_instance).mig if found.gpu_instance else _WHOLE_GPU
    known = KNOWN_FIELDS.get(old_name(found.field))
    if known is None or found.link:
        name = old_name(found.field) + (f" link {found.link}" if found.link else "")
        return sample("rankwatch_dcgm_field", (gpu, mig, name), found.value)
    value = known.value(found.value)
    if value is None:
        return None
    if mig and known.mig is not None:
        return Series(known.mig, (gpu, mig, *known.extra), value)
    return Series(known.metric, (gpu, *known.extra), value)


MAX_ANSWER_BYTES = 16 << 20
"""16 GPUs with every field of DCGM and the labels of their pods stay below 5 MB. It is in memory twice."""
_USER = re.compile(r"//[^/@]*@")


def parse_endpoint(url: str) -> str:
    """Return an http or https URL with its port and path; raises FieldError."""
    expected = "a URL such as http://localhost:9400/metrics, without a user and without spaces"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        (parts.hostname or "").encode("idna")
    except ValueError:
        raise FieldError("dcgm_endpoint", _without_password(url), expected) from None
    sound = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    if not sound or not url.isascii() or not url.isprintable() or " " in url:
        raise FieldError("dcgm_endpoint", _without_password(url), expected)
    target = (parts.path or "/metrics") + (f"?{parts.query}" if parts.query else "")
    return f"{parts.scheme}://{parts.hostname}:{port}{target}"


def _without_password(url: str) -> str:
    return _USER.sub("//...@", url)


def fetch(endpoint: str, timeout_seconds: float) -> bytes:
    """Return the body of the answer, if all of it comes in time; raises CollectError."""
    accept = {"Accept": "text/plain"}
    try:
        answer = ask(endpoint, seconds=timeout_seconds, most_bytes=MAX_ANSWER_BYTES, headers=accept)
    except OSError as error:
        raise CollectError(f"could not query {endpoint}: {error}") from None
    except IncompleteRead as error:
        length = len(error.partial)
        raise CollectError(f"could not read {endpoint}: the answer was cut off at {length} bytes") from None
    except HTTPException:
        raise CollectError(f"could not query {endpoint}: the answer is not HTTP") from None
    except ValueError as error:
        raise CollectError(f"could not read {endpoint}: {error}") from None
    if answer.status != OK:
        raise CollectError(f"could not query {endpoint}: it answered with status '{answer.status}'")
    if "content-encoding" in answer.headers:
        raise CollectError(f"could not read {endpoint}: the answer has an encoding that was not asked for")
    return answer.body


MAX_LINES = 500_000
"""Lines read of one answer; 16 GPUs with every field have about 10,000."""
MAX_SAMPLES = 50_000
"""Samples kept of one answer; 16 GPUs of 7 instances with 100 fields, repeated for pods, have 22,400."""

_NAME = re.compile(rb"([A-Z][A-Z0-9_]{0,199})\{")
_VALUE = re.compile(rb"\}\s+([-+.0-9A-Za-z]{1,40})(?:\s+\d{1,20})?\s*$")
_LABEL = re.compile(rb'[{,](UUID|gpu_uuid|pci_bus_id|GPU_I_ID|nvlink|nvswitch)="([^"]{0,100})"')
_HEAD_BYTES = 4096
"""Only this many bytes from the start of a line are searched for the labels that identify the GPU."""
_TAIL_BYTES = 100
"""Only this many bytes at the end of a line are searched for the value."""


class DcgmSample(NamedTuple):
    """One value of one field."""

    field: str
    uuid: str
    """Empty where the line lacks it."""
    pci_bus_id: str
    """As dcgm-exporter writes it; empty where the line lacks it."""
    gpu_instance: str
    """Number of the MIG instance; empty for the whole GPU."""
    link: str
    """Number of the NVLink; empty where the value belongs to no link."""
    value: float


class DcgmAnswer(NamedTuple):
    """The part of an answer that is used."""

    samples: tuple[DcgmSample, ...]
    """Samples of the wanted fields."""
    fields: int
    """Lines that hold any field of DCGM."""
    cut: bool
    """True where the answer exceeds MAX_LINES or MAX_SAMPLES; the rest is left out."""


def parse_answer(text: bytes, wanted: Members[str]) -> DcgmAnswer:
    """Return the samples of the wanted fields; lines that cannot be parsed are skipped."""
    samples: list[DcgmSample] = []
    fields = 0
    for number, line in enumerate(io.BytesIO(text)):  # without a list of all of them
        if number >= MAX_LINES or len(samples) >= MAX_SAMPLES:
            return DcgmAnswer(tuple(samples), fields, True)
        name = _NAME.match(line)
        if name is None:
            continue
        fields += line.startswith(b"DCGM_")
        field = name[1].decode("ascii")
        if field not in wanted:
            continue
        sample = _sample(field, line)
        if sample is not None:
            samples.append(sample)
    return DcgmAnswer(tuple(samples), fields, False)


def _sample(field: str, line: bytes) -> DcgmSample | None:
    value = _VALUE.search(line, max(0, len(line) - _TAIL_BYTES))
    if value is None:
        return None
    try:
        number = float(value[1])
    except ValueError:
        return None
    labels: dict[bytes, str] = {}
    for name, text in _LABEL.findall(line, 0, _HEAD_BYTES):
        labels.setdefault(name, text.decode("utf-8", "replace"))  # the first one: later ones come from pods
    if b"nvswitch" in labels:
        return None
    return DcgmSample(
        field=field,
        uuid=labels.get(b"UUID") or labels.get(b"gpu_uuid", ""),
        pci_bus_id=labels.get(b"pci_bus_id", ""),
        gpu_instance=labels.get(b"GPU_I_ID", ""),
        link=labels.get(b"nvlink", ""),
        value=number,
    )
