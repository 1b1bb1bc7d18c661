"""A driver to use where there is no GPU: our own libnvidia-ml.so.1, which a description of a node steers.

The library (tests/support/gpu/fake_nvml, C) is what the real pynvml loads. A value in the description is

    1000                            the value
    {"value": 1000, "rate": 10}     a counter that grows by 10 each second since driver.epoch
                                    (CLOCK_MONOTONIC), else since the library was loaded
    {"error": 999}                  this NVML error instead of the value
    None, or left out               NVML_ERROR_NOT_SUPPORTED

The node and each GPU may carry `unsupported` (functions by name, fields by number), `errors` (function or
field -> NVML error) and `hang` (functions that never return). A function without its suffix (_v2, _v3) means
all of its versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.gpu.nvml_node import Node, hopper_node

SOURCES = Path(__file__).parent / "fake_nvml"
SONAME = "libnvidia-ml.so.1"
FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-pthread")
EVENT_XID = 0x8
"""nvmlEventTypeXidCriticalError."""


def build_library(directory: Path) -> Path:
    """Compile the fake driver into the directory; skips the test where there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) to build the fake NVML library with")
    library = directory / SONAME
    command = [compiler, *FLAGS, f"-Wl,-soname,{SONAME}", "-o", str(library)]
    command += [str(source) for source in sorted(SOURCES.glob("*.c"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


class FakeDriver:
    """One node with its GPUs; the library sees a change at its next call."""

    def __init__(self, directory: Path, library: Path, node: Node | None = None) -> None:
        self.library = library
        self.node = hopper_node() if node is None else node
        self._file = directory / "nvml.txt"
        self._log = directory / "nvml.log"
        self._changed_ns = 0
        self._write()

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which a process finds this driver."""
        paths = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": os.pathsep.join(paths), **self.environ_without_path}

    @property
    def environ_without_path(self) -> dict[str, str]:
        """The same for a process that gets the library's path in another way."""
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
        """(pid, function) of each nvmlInit and nvmlShutdown so far, without the suffix."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [(int(pid), function) for pid, function in (line.split() for line in lines)]

    def update(self, change: Callable[[Node], object]) -> None:
        """Change the node in place and publish it in one step."""
        change(self.node)
        self._write()

    def set(self, index: int, path: str, value: object) -> None:
        """Set one value of a GPU: `power.usage_mw`, `fields.138.3`. None makes it unsupported.

        Raises KeyError where the node has no such value, except for fields and GPM metrics.
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
        self._owner(index)["hang"].append(_known(function))
        self._write()

    def release(self) -> None:
        """New calls return again. One that hangs stays so until its process is killed."""
        for owner in (self.node, *self.node["gpus"]):
            owner["hang"] = []
        self._write()

    def unsupport(self, what: str | int, index: int | None = None) -> None:
        """The driver answers NOT_SUPPORTED for a function or a field, for one GPU or for all."""
        self._owner(index)["unsupported"].append(what if isinstance(what, int) else _known(what))
        self._write()

    def fail(self, what: str | int, error: int, index: int | None = None) -> None:
        """The driver answers with the error for a function or a field, for one GPU or for all."""
        self._owner(index)["errors"][str(what) if isinstance(what, int) else _known(what)] = error
        self._write()

    def xid(self, index: int, code: int) -> None:
        """An XID error, delivered once to each event set on which the GPU is registered by now."""
        self.node["events"].append({"gpu": index, "type": EVENT_XID, "data": code})
        self._write()

    def unload(self) -> None:
        """The driver is gone: nvmlInit and every other call say DRIVER_NOT_LOADED."""
        self.node["driver"]["absent"] = True
        self._write()

    def load(self) -> None:
        """The driver is back; its former users have to initialise it again."""
        self.node["driver"]["absent"] = False
        self.node["driver"]["generation"] += 1
        self._write()

    def reload(self) -> None:
        """The driver went and came back between two calls."""
        self.unload()
        self.load()

    def write_text(self, text: str) -> None:
        """Replace the whole file, with something broken for instance."""
        new = self._file.with_suffix(".new")
        new.write_text(text)
        # A file system's clock is coarse and inodes are used again: two quick changes could look alike.
        self._changed_ns = max(time.time_ns(), self._changed_ns + 1)
        os.utime(new, ns=(self._changed_ns, self._changed_ns))
        new.replace(self._file)

    def _write(self) -> None:
        lines = dict(_flat("", self.node))
        self.write_text("".join(f"{path}={lines[path]}\n" for path in sorted(lines)))

    def _owner(self, index: int | None) -> Node:
        owner: Node = self.node if index is None else self.node["gpus"][index]
        return owner


def _flat(path: str, value: Any) -> Iterator[tuple[str, object]]:
    """(path, text) of each value, as the library reads them; `path.#` is the length of a list."""
    if path.endswith(("hang", "unsupported")):
        yield from ((f"{path}.{name}", 1) for name in value)
    elif isinstance(value, list):
        yield f"{path}.#", len(value)
        for at, each in enumerate(value):
            yield from _flat(f"{path}.{at}", each)
    elif isinstance(value, dict) and "error" in value:
        yield path, f"!{value['error']}"
    elif isinstance(value, dict) and "rate" in value:
        yield path, f"{value['value']}+{value['rate']}"
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _flat(f"{path}.{name}" if path else name, each)
    elif value is not None:
        yield path, int(value) if isinstance(value, bool) else value


def _known(function: str) -> str:
    """The function, if the fake library has it: a misspelt name in a test must not pass unnoticed."""
    sources = "".join(source.read_text() for source in SOURCES.glob("*.c"))
    if not re.search(rf"^(?:NVML_API |NUMBER\(|TEXT\(){function}(?:_v\d)?[(,]|\"{function}\"", sources, re.M):
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
