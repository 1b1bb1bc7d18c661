"""Inputs to one reader, each measured: what it raised, the time of the processor and the memory that it took.

Inputs are read in a child process, a few hundred in each. Input number n of a reader and a seed is always the
same, whichever process reads it, so that a failure can be repeated alone.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import pickle
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from .changes import changed
from .reader import MOST_BYTES, MOST_SECONDS, Document, Reader, peak_reset, status_bytes

_ADDRESS_SPACE = 3 * MOST_BYTES
"""Beyond what the process has: more than may be used, so that it shows, and less than hurts the machine."""
_SILENT_SECONDS = 120.0
"""Without a new input, after which the child hangs."""
_TRIM_BYTES = 32 << 20
_RESULT = "result"


@dataclass(kw_only=True)
class Failure:
    """An input that a reader could not stand."""

    number: int
    what: str
    """`crash`, `slow`, `large`, `words` for more than a sentence, or the signal that ended the process."""
    text: str = ""


@dataclass(kw_only=True)
class Counts:
    """What some inputs gave."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, -1)
    """Seconds, and the number of the input."""
    largest: tuple[int, int] = (0, -1)
    """Bytes, and the number of the input."""
    failures: list[Failure] = field(default_factory=list)

    def add(self, more: Counts) -> None:
        self.inputs += more.inputs
        self.accepted += more.accepted
        self.refused += more.refused
        self.seconds += more.seconds
        self.slowest = max(self.slowest, more.slowest)
        self.largest = max(self.largest, more.largest)
        self.failures += more.failures


class OutOfTimeError(BaseException):
    """Not caught by anything that catches errors."""


def change_of(
    reader: str, documents: Sequence[Document], seed: int, number: int
) -> tuple[Document, str, bytes]:
    """The document, the file that is changed, and its changed content; below 0 a document as it is."""
    if number < 0:
        whole = documents[number]
        return whole, whole.candidates[0], whole.files[whole.candidates[0]]
    chance = Random(f"{seed} {reader} {number}")
    chosen = chance.choice(documents)
    name = chance.choice(chosen.candidates)
    suffix = Path(name).suffix
    others = [
        content
        for each in documents
        for other, content in each.files.items()
        if Path(other).suffix == suffix and len(content) < 1 << 20
    ]
    data = chosen.files[name]
    for _ in range(chance.choice((1, 1, 1, 2))):
        data = changed(data, others, chance)
    return chosen, name, data


class Child:
    """Reads the inputs of these numbers in a process of its own, which works in `folder`."""

    def __init__(
        self, reader: Reader, documents: Sequence[Document], seed: int, numbers: range, folder: Path
    ) -> None:
        self.numbers = numbers
        self._folder = folder
        self._progress = mmap.mmap(-1, 8)
        """How many inputs it has begun."""
        self._seen, self._moved = -1, time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            found: Counts | str
            try:
                found = _measured(reader, documents, seed, numbers, self._progress, folder)
            except BaseException:  # noqa: BLE001 - of the harness: the parent says it
                found = traceback.format_exc()
            (folder / _RESULT).write_bytes(pickle.dumps(found))
            os._exit(0)

    def ended(self) -> Counts | None:
        """What it found, once it is over; None before. One that broke gives the input that broke it."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        begun = int.from_bytes(self._progress[:8], "little")
        if pid == 0:
            if begun != self._seen:
                self._seen, self._moved = begun, time.monotonic()
            elif time.monotonic() - self._moved > _SILENT_SECONDS:
                os.kill(self.pid, signal.SIGKILL)
                self._moved = float("inf")
            return None
        found = pickle.loads((self._folder / _RESULT).read_bytes()) if status == 0 else None
        shutil.rmtree(self._folder)
        if isinstance(found, str):
            raise RuntimeError(found)
        if isinstance(found, Counts):
            return found
        what = "hang" if self._moved == float("inf") else signal.Signals(status & 0x7F).name
        failure = Failure(number=self.numbers[begun - 1], what=what)
        return Counts(inputs=begun, accepted=begun - 1, failures=[failure])

    def kill(self) -> None:
        """End it, whatever it does."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _measured(
    reader: Reader,
    documents: Sequence[Document],
    seed: int,
    numbers: range,
    progress: mmap.mmap,
    folder: Path,
) -> Counts:
    """Run in the child."""
    _prepare()
    counts = Counts()
    folders = dict(_laid_out(documents, folder))
    for begun, number in enumerate(numbers, 1):
        progress[:8] = begun.to_bytes(8, "little")
        chosen, name, data = change_of(reader.name, documents, seed, number)
        path = folders[id(chosen)] / name
        _put(path, data)
        _try(reader, folders[id(chosen)], number, counts)
        _put(path, chosen.files[name])
    return counts


def _prepare() -> None:
    logging.disable(logging.CRITICAL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _out_of_time)
    most = status_bytes("self", "VmSize") + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    sys.setswitchinterval(0.05)


def _laid_out(documents: Sequence[Document], base: Path) -> Iterator[tuple[int, Path]]:
    for index, each in enumerate(documents):
        folder = base / str(index)
        for name, content in each.files.items():
            _put(folder / name, content)
        yield id(each), folder


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)  # a reader may have removed what it found
    path.write_bytes(content)


def _try(reader: Reader, folder: Path, number: int, counts: Counts) -> None:
    peak_reset("self")
    before, children = status_bytes("self", "VmRSS"), _children()
    began = _cpu_seconds()
    what = text = ""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS + 1.0, 1.0)
    try:
        reader.read(folder)
        counts.accepted += 1
    except reader.refuses as error:
        counts.refused += 1
        what, text = ("words", str(error)) if "\n" in str(error).strip() else ("", "")
    except OutOfTimeError:
        text = traceback.format_exc()[-3000:]
    except BaseException:  # noqa: BLE001 - this is what is looked for
        what, text = "crash", traceback.format_exc()[-3000:]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    seconds = _cpu_seconds() - began
    size = max(status_bytes("self", "VmHWM") - before, _children() if _children() > children else 0)
    counts.inputs += 1
    counts.seconds += seconds
    counts.slowest = max(counts.slowest, (seconds, number))
    counts.largest = max(counts.largest, (size, number))
    what = what or ("slow" if seconds > MOST_SECONDS else "large" if size > MOST_BYTES else "")
    if what:
        text = text or f"{seconds:.1f} s, {size >> 20} MiB"
        counts.failures.append(Failure(number=number, what=what, text=text))
    if size > _TRIM_BYTES:
        ctypes.CDLL(None).malloc_trim(0)  # else the next input uses what this one has left


def _out_of_time(number: int, frame: object) -> None:
    raise OutOfTimeError


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
