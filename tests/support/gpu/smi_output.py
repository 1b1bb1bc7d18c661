"""What `nvidia-smi` prints, read into base units.

Its answers are kept by UUID of the GPU and by the name of their source:

    memory.total                a field of --query-gpu
    /fb_memory_usage/total      an element of -q -x, as a path below <gpu> (or below the root)
    reason/sw_power_cap         a bit of clocks_event_reasons.active, N/A where .supported lacks it
    process/4711, processes     processes with a compute context, from -q -x
    nvlink/active, ...          sums over the links, from `nvidia-smi nvlink`
"""

from __future__ import annotations

import csv
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Answers = dict[str, str]
"""Source -> the words of nvidia-smi."""

REASONS = {
    "gpu_idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clock_setting": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
"""Bits of the reasons mask (nvml.h, nvmlClocksEventReason...)."""
NOT_AVAILABLE = "N/A"
_ABSENT = {"N/A", "Not Supported", "Not Available"}
_FLAGS = {
    **dict.fromkeys(("Yes", "Active", "Enabled", "True", "Degraded"), 1.0),
    **dict.fromkeys(("No", "Not Active", "Disabled", "False", "Full", "None"), 0.0),
}
_SCALES = {
    "": 1.0,
    "x": 1.0,
    "C": 1.0,
    "W": 1.0,
    "%": 0.01,
    "MHz": 1e6,
    "us": 1e-6,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "KB/s": 1000.0,
}
_NUMBER = re.compile(r"(-?\d+)(?:\.(\d+))?\s*([A-Za-z%/]*)")
_LISTS = {"processes", "supported_clocks", "mig_devices", "accounted_processes"}
"""Elements that repeat: they are counted, not flattened."""
_LINK_GPU = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_LINK = re.compile(r"\s*Link (\d+): (.+)")
_LINK_SUMS = {
    "Data Tx": "nvlink/tx",
    "Data Rx": "nvlink/rx",
    "Replay Errors": "nvlink/replay",
    "Recovery Errors": "nvlink/recovery",
    "CRC Errors": "nvlink/crc",
}


class Quantity(NamedTuple):
    """A number in base units."""

    value: float
    step: float
    """What the last digit stands for where the number was rounded to a unit; 0 for a plain count."""


def is_absent(words: str) -> bool:
    """Whether nvidia-smi says that the GPU has it not."""
    return words.strip("[] ") in _ABSENT


def quantity(words: str) -> Quantity | None:
    """The number in a cell or element; None where there is none: an error, a deprecation, a text."""
    if words in _FLAGS or words.startswith("Incorrect "):
        return Quantity(_FLAGS.get(words, 1.0), 0.0)
    if re.fullmatch(r"0x[0-9A-Fa-f]+", words):
        return Quantity(float(int(words, 16)), 0.0)
    found = _NUMBER.fullmatch(words)
    if found is None or found[3] not in _SCALES:
        return None
    scale, digits = _SCALES[found[3]], found[2] or ""
    value = float(f"{found[1]}.{digits or '0'}") * scale
    return Quantity(value, scale * 10.0 ** -len(digits) if digits or scale != 1.0 else 0.0)


def csv_answers(fields: Sequence[str], output: str) -> dict[str, Answers]:
    """The cells of --query-gpu by UUID, which is one of the fields."""
    rows = [row for row in csv.reader(output.splitlines(), skipinitialspace=True) if len(row) == len(fields)]
    found = [dict(zip(fields, (cell.strip() for cell in row), strict=True)) for row in rows]
    return {row["uuid"]: row for row in found}


def xml_answers(output: str) -> dict[str, Answers]:
    """The elements of -q -x by UUID; those of the node are told of every GPU."""
    root = ElementTree.fromstring(output[output.find("<") : output.rfind(">") + 1])
    node = {f"/{each.tag}": _words(each) for each in root if not len(each)}
    return {
        gpu.findtext("uuid", "").strip(): {**node, **_flat(gpu, ""), **_processes(gpu), **_migs(gpu)}
        for gpu in root.iter("gpu")
    }


def link_answers(status: str, counters: str, errors: str) -> dict[str, Answers]:
    """Sums over the links of each GPU from `nvlink -s`, `-gt d` and `-e`."""
    found: dict[str, Answers] = {}
    for uuid, lines in _by_gpu(status).items():
        states = [link[2] for link in map(_LINK.fullmatch, lines) if link]
        told = found.setdefault(uuid, {})
        if states:
            told["nvlink/ports"] = str(len(states))
        if states or "all links are inactive" in " ".join(lines).lower():
            told["nvlink/active"] = str(sum("inactive" not in each.lower() for each in states))
    for output in (counters, errors):
        for uuid, lines in _by_gpu(output).items():
            found.setdefault(uuid, {}).update(_link_sums(lines))
    return found


def tell_reasons(answers: Answers) -> None:
    """Add each bit of the masks; the cells of a reason the GPU has not are taken out."""
    active, supported = (
        quantity(answers.get(f"clocks_event_reasons.{each}", "")) for each in ("active", "supported")
    )
    if active is None or supported is None:
        return
    for reason, bit in REASONS.items():
        if int(active.value) & bit or int(supported.value) & bit:
            answers[f"reason/{reason}"] = "Active" if int(active.value) & bit else "Not Active"
            continue
        # a cell says "Not Active" of a reason that the GPU does not know, too
        for source in [each for each in answers if each.endswith((f"reasons.{reason}", f"reason_{reason}"))]:
            del answers[source]
        answers[f"reason/{reason}"] = NOT_AVAILABLE


def _by_gpu(output: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output.splitlines():
        gpu = _LINK_GPU.match(line)
        if gpu:
            lines = found.setdefault(gpu[1], [])
        else:
            lines.append(line)
    return found


def _link_sums(lines: Iterable[str]) -> Answers:
    sums: dict[str, tuple[int, str]] = {}
    for link in filter(None, map(_LINK.fullmatch, lines)):
        name, _, words = link[2].partition(": ")
        source, number = _LINK_SUMS.get(name.strip()), re.match(r"(\d+)(?: (KiB))?$", words.strip())
        if source and number:
            sums[source] = (sums.get(source, (0, ""))[0] + int(number[1]), number[2] or "")
    return {source: f"{number} {unit}".strip() for source, (number, unit) in sums.items()}


def _flat(element: ElementTree.Element, path: str) -> Answers:
    found: Answers = {}
    for child in element:
        if child.tag not in _LISTS:
            below = f"{path}/{child.tag}"
            found.update(_flat(child, below) if len(child) else {below: _words(child)})
    return found


def _processes(gpu: ElementTree.Element) -> Answers:
    element = gpu.find("processes")
    if element is None or is_absent(_words(element)):
        return {} if element is None else {"processes": NOT_AVAILABLE}
    found = {
        f"process/{each.findtext('pid', '').strip()}": each.findtext("used_memory", "").strip()
        for each in element.iter("process_info")
        if "C" in each.findtext("type", "")
    }
    return {"processes": str(len(found)), **found}


def _migs(gpu: ElementTree.Element) -> Answers:
    return {"mig_devices": str(sum(1 for _ in gpu.iter("mig_device")))}


def _words(element: ElementTree.Element) -> str:
    return (element.text or "").strip()
