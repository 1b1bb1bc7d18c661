"""A driver to talk to where there is no GPU: a real libnvidia-ml.so.1 of our own that a JSON file steers.

The library (tests/support/gpu/fake_nvml, C) is what the real pynvml loads. A value in the JSON is one of

    1000                            the value
    {"value": 1000, "rate": 10}     a counter that grows by 10 each second since driver.epoch
                                    (CLOCK_MONOTONIC), else since the library was loaded
    {"error": 999}                  this NVML error instead of the value
    null, or left out               NVML_ERROR_NOT_SUPPORTED

and the node as well as each GPU may carry `unsupported` (functions by name, fields by number), `errors`
(function or field -> NVML error) and `hang` (functions that never return). A function without its suffix
(_v2, _v3) means all of its versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gpu.nvml_node import Node, blackwell_node, hopper_node, running, split_into_instances

__all__ = [
    "FakeDriver",
    "Node",
    "blackwell_node",
    "build_library",
    "fake_driver",
    "functions",
    "hopper_node",
    "nvml_library",
    "running",
    "split_into_instances",
]

SOURCES = Path(__file__).parent / "fake_nvml"
SONAME = "libnvidia-ml.so.1"
FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread")
EVENT_XID = 0x8
"""nvmlEventTypeXidCriticalError."""


def build_library(directory: Path, *flags: str) -> Path:
    """Compile the fake driver into the directory; its path. Skips the test where no C compiler is."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the fake NVML library with")
    library = directory / SONAME
    command = [compiler, *FLAGS, *flags, f"-Wl,-soname,{SONAME}", "-o", str(library)]
    command += [str(source) for source in sorted(SOURCES.glob("*.c"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class FakeDriver:
    """One node with its GPUs, as the JSON file describes it; a change is seen at the next call."""

    def __init__(self, directory: Path, library: Path, node: Node | None = None) -> None:
        self.library = library
        self.node = hopper_node() if node is None else node
        self._file = directory / "nvml.json"
        self._log = directory / "nvml.log"
        self._xids = 0
        self._changed_ns = 0
        self._write()

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to find this driver; to be set before it starts."""
        paths = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": os.pathsep.join(paths), **self.environ_without_path}

    @property
    def environ_without_path(self) -> dict[str, str]:
        """The same for a process that is told the library's path in another way."""
        return {"RANKWATCH_FAKE_NVML": str(self._file), "RANKWATCH_FAKE_NVML_LOG": str(self._log)}

    @contextlib.contextmanager
    def in_this_process(self) -> Iterator[None]:
        """Let pynvml in this process load this driver. The library itself stays loaded until the end."""
        before = dict(os.environ)
        os.environ.update(self.environ_without_path)
        ctypes.CDLL(str(self.library), ctypes.RTLD_GLOBAL)  # later ones find it by its soname
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    @property
    def calls(self) -> list[tuple[int, str]]:
        """(pid, function) of each nvmlInit and nvmlShutdown so far, the suffix left out."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [(int(pid), function) for pid, function in (line.split() for line in lines)]

    def update(self, change: Callable[[Node], object]) -> None:
        """Change the node in place and publish it in one step."""
        change(self.node)
        self._write()

    def set(self, index: int, path: str, value: object) -> None:
        """Set one value of a GPU: `power.usage_mw`, `fields.138.3`. None makes it unsupported.

        KeyError where the node has no such value, save for fields and GPM metrics.
        """
        *parents, last = path.split(".")
        at: Any = self.node["gpus"][index]
        for name in parents:
            at = at[int(name) if isinstance(at, list) else name]
        if isinstance(at, list):
            at[int(last)] = value
        elif last in at or parents[-1:] in (["fields"], ["metrics"]):
            at[last] = value
        else:
            raise KeyError(path)
        self._write()

    def lose(self, index: int) -> None:
        """The GPU falls off the bus: every call on its handle says so. The count stays."""
        self.set(index, "lost", True)

    def find(self, index: int) -> None:
        """The lost GPU is back."""
        self.set(index, "lost", False)

    def hang(self, function: str, index: int | None = None) -> None:
        """From now on the function never returns, for one GPU or for all."""
        self._list("hang", index).append(_known(function))
        self._write()

    def release(self) -> None:
        """New calls return again. One that hangs stays so until its process is killed."""
        for owner in (self.node, *self.node["gpus"]):
            owner["hang"] = []
        self._write()

    def unsupport(self, what: str | int, index: int | None = None) -> None:
        """The driver says NOT_SUPPORTED for a function or the number of a field, for one GPU or for all."""
        self._list("unsupported", index).append(what if isinstance(what, int) else _known(what))
        self._write()

    def fail(self, what: str | int, error: int, index: int | None = None) -> None:
        """The driver returns the error for a function or the number of a field, for one GPU or for all."""
        owner = self.node if index is None else self.node["gpus"][index]
        owner["errors"][str(what) if isinstance(what, int) else _known(what)] = error
        self._write()

    def xid(self, index: int, code: int, **more: object) -> None:
        """An XID error, delivered once to each event set on which the GPU is registered by now."""
        self._xids += 1
        self.node["events"].append({"id": self._xids, "gpu": index, "type": EVENT_XID, "data": code, **more})
        self._write()

    def unload(self) -> None:
        """The driver is gone: nvmlInit and every other call say DRIVER_NOT_LOADED."""
        self.node["driver"]["absent"] = True
        self._write()

    def load(self) -> None:
        """The driver is back; who used it before has to initialise it again."""
        self.node["driver"]["absent"] = False
        self.node["driver"]["generation"] += 1
        self._write()

    def reload(self) -> None:
        """The driver went and came back between two calls."""
        self.unload()
        self.load()

    def write_text(self, text: str) -> None:
        """Put something else into the file than the node: what is broken, for instance."""
        new = self._file.with_suffix(".new")
        new.write_text(text)
        # A file system's clock is coarse and inodes are used again: two quick changes could look alike.
        self._changed_ns = max(time.time_ns(), self._changed_ns + 1)
        os.utime(new, ns=(self._changed_ns, self._changed_ns))
        new.replace(self._file)

    def _write(self) -> None:
        self.write_text(json.dumps(self.node))

    def _list(self, name: str, index: int | None) -> list[object]:
        owner = self.node if index is None else self.node["gpus"][index]
        found: list[object] = owner[name]
        return found


def functions() -> frozenset[str]:
    """Every function of the fake library, with and without its suffix."""
    names: set[str] = set()
    for source in SOURCES.glob("*.c"):
        names.update(re.findall(r"^NVML_API (nvml\w+)\(", source.read_text(), re.MULTILINE))
    return frozenset(names | {re.sub(r"_v\d+$", "", name) for name in names})


def _known(function: str) -> str:
    if function not in functions():
        raise KeyError(f"the fake library has no function {function}")
    return function


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libnvidia-ml.so.1, compiled once."""
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_driver(tmp_path: Path, nvml_library: Path) -> FakeDriver:
    """A healthy node with 8 GPUs like the H100."""
    return FakeDriver(tmp_path, nvml_library)
