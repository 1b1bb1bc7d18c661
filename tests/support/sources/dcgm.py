"""A small dcgm-exporter: a real HTTP server that gives good and bad answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from support.servers.loopback import Handler, serving_http

UUIDS = ("GPU-aaaaaaaa-0000-1111-2222-333344445555", "GPU-bbbbbbbb-0000-1111-2222-333344445555")
BUS_IDS = ("00000000:3B:00.0", "00000000:5C:00.0")

BLANK_INTEGER = "9223372036854775794"
"""DCGM's value for a field that is not supported."""


class Value(NamedTuple):
    """One line: field, number of the GPU, value, and labels after those of the GPU."""

    field: str
    gpu: int
    value: str
    extra: str = ""


NORMAL = (
    Value("DCGM_FI_DEV_SM_CLOCK", 0, "1980"),
    Value("DCGM_FI_DEV_GPU_TEMP", 0, "41"),
    Value("DCGM_FI_DEV_GPU_TEMP", 1, "43"),
    Value("DCGM_FI_DEV_MEMORY_TEMP", 0, BLANK_INTEGER),
    Value("DCGM_FI_DEV_XID_ERRORS", 0, "0"),
    Value("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0, "0.874530"),
    Value("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1, "0.125"),
    Value("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0, "0.500000"),
    Value("DCGM_FI_PROF_PCIE_TX_BYTES", 0, "1500000000"),
    Value("DCGM_FI_PROF_NVLINK_TX_BYTES", 0, "250000000"),
)


def exposition(*lines: Value) -> bytes:
    """The text of dcgm-exporter: each field with its head, label values as they are."""
    parts = []
    for field in dict.fromkeys(each.field for each in lines):
        parts.append(f"# HELP {field} Something about {field}.\n# TYPE {field} gauge\n")
        parts += [_line(each) for each in lines if each.field == field]
    return "".join(parts).encode()


def _line(each: Value) -> str:
    labels = (
        f'gpu="{each.gpu}",UUID="{UUIDS[each.gpu]}",pci_bus_id="{BUS_IDS[each.gpu]}",device="nvidia{each.gpu}"'
        f',modelName="NVIDIA A100-SXM4-80GB"{each.extra},Hostname="node-1"'
    )
    return f"{each.field}{{{labels}}} {each.value}\n"


class DcgmExporter:
    """The answer may be changed between two requests.

    mode: `normal` (body), `hang` (no answer), `drip` (a byte now and then), `error` (status 500), `redirect`,
    `garbage` (no HTTP), `huge` (33 MiB), `cut` (less than announced).
    """

    def __init__(self) -> None:
        self.mode = "normal"
        self.body = exposition(*NORMAL)
        self.paths: list[str] = []
        self.released = threading.Event()
        self.url = ""


@contextmanager
def dcgm_exporter() -> Iterator[DcgmExporter]:
    """A dcgm-exporter on a free loopback port until the end of the block."""
    exporter = DcgmExporter()

    class Answer(Handler):
        def answer(self) -> None:
            exporter.paths.append(self.path)
            with suppress(OSError):  # the client has given up, which is what is being tested
                self._answer(exporter.mode, exporter.body)

        def _answer(self, mode: str, body: bytes) -> None:
            match mode:
                case "normal":
                    self.reply(body)
                case "hang":
                    exporter.released.wait()
                case "drip":
                    while not exporter.released.wait(0.02):
                        self.wfile.write(b"H")
                case "error":
                    self.reply(status=500)
                case "redirect":
                    self.head(0, 302, Location="/elsewhere")
                case "garbage":
                    self.wfile.write(b"\x00\xff garbage\r\n\r\n" + body)
                case "huge":
                    block = b"# filler\n" * 100_000
                    self.head(40 * len(block))
                    for _ in range(40):
                        self.wfile.write(block)
                case "cut":
                    self.head(len(body) + 1)
                    self.wfile.write(body)
                case _:
                    raise KeyError(mode)

    with serving_http(Answer) as address:
        exporter.url = f"http://{address}/metrics"
        try:
            yield exporter
        finally:
            exporter.released.set()
