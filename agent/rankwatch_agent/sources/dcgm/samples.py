"""The text of dcgm-exporter, read line by line.

Its label values are not escaped (a quote or a brace in a pod's label ends up in the middle of a line as it
stands), so that a strict parser dies on it. The labels that identify the GPU come first in every line and
hold no quotes: those are read, the rest is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Collection as Members
from collections.abc import Iterator
from typing import NamedTuple

MAX_LINES = 500_000
"""Lines looked at in one answer; sixteen GPUs with every field have about 10,000."""
MAX_SAMPLES = 50_000
"""Samples taken from one answer: 16 GPUs of 7 instances with 100 fields, and as many again for pods."""

_NAME = re.compile(rb"([A-Z][A-Z0-9_]{0,199})\{")
_VALUE = re.compile(rb"\}\s+([-+.0-9A-Za-z]{1,40})(?:\s+\d{1,20})?\s*$")
_LABEL = re.compile(rb'[{,](UUID|gpu_uuid|pci_bus_id|GPU_I_ID|nvlink|nvswitch)="([^"]{0,100})"')
_HEAD_BYTES = 4096
"""The labels that identify the GPU lie within this many bytes of the beginning of a line."""
_TAIL_BYTES = 100
"""The value and its brace lie within this many bytes of the end of a line."""


class DcgmSample(NamedTuple):
    """One value of one field."""

    field: str
    uuid: str
    """Empty where the line has none."""
    pci_bus_id: str
    """As written there; empty where the line has none."""
    gpu_instance: str
    """Number of the MIG instance; empty for the whole GPU."""
    link: str
    """Number of the NVLink; empty where the value is not of a link."""
    value: float


class DcgmAnswer(NamedTuple):
    """What an answer holds."""

    samples: tuple[DcgmSample, ...]
    """Those of the wanted fields."""
    fields: int
    """Lines of any field of DCGM."""
    cut: bool
    """True where it holds more than MAX_LINES or MAX_SAMPLES; the rest is left out."""


def parse_answer(text: bytes, wanted: Members[str]) -> DcgmAnswer:
    """The samples of wanted fields; lines that cannot be read are passed over."""
    samples: list[DcgmSample] = []
    fields = 0
    for number, line in enumerate(_lines(text)):
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


def _lines(text: bytes) -> Iterator[bytes]:
    """One line after another, without holding all of them."""
    start = 0
    while start < len(text):
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


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
        labels.setdefault(name, text.decode("utf-8", "replace"))  # the first: a later one is a forgery
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
