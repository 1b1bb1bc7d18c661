"""A reader of users' bytes: valid documents, the function that reads them, what it may raise and use."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rankwatch_cli.main import main

MOST_SECONDS = 10.0
"""Of the processor, for one input."""
MOST_BYTES = 512 << 20
"""By which one input may increase the memory of its process."""


def status_bytes(process: int | str, name: str) -> int:
    """A size in /proc/PROCESS/status, such as VmRSS."""
    with open(f"/proc/{process}/status") as file:
        line = next(each for each in file if each.startswith(name))
    return int(line.split()[1]) << 10


def peak_reset(process: int | str) -> None:
    """Let its peak (VmHWM) count from now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")


@contextmanager
def watched(process: int) -> Iterator[None]:
    """Raises AssertionError if another process needs too much within the block."""
    peak_reset(process)
    before = status_bytes(process, "VmRSS")
    yield
    size = status_bytes(process, "VmHWM") - before
    if size > MOST_BYTES:
        raise AssertionError(f"its process needs {size >> 20} MiB")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A valid document: a folder of files, one of which is changed."""

    files: Mapping[str, bytes]
    changed: tuple[str, ...] = ()
    """Names of those that may be changed; empty for all."""

    @property
    def candidates(self) -> tuple[str, ...]:
        return self.changed or tuple(self.files)


@dataclass(frozen=True)
class Reader:
    """One row of the table."""

    name: str
    documents: Callable[[Path], Sequence[Document]]
    """Makes documents of several shapes; may use the empty folder that it is given."""
    read: Callable[[Path], object]
    """Reads the folder with a document as the product does."""
    refuses: tuple[type[Exception], ...] = ()
    """The exceptions by which it may refuse a document."""
    share: float = 1.0
    """Of all inputs, beside the other readers: slow readers get less."""


def document(folder: Path, *changed: str) -> Document:
    """What lies in a folder, as a document."""
    files = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    return Document(files=dict(sorted(files.items())), changed=changed)


def single(*contents: bytes, name: str = "document") -> list[Document]:
    """Documents of one file."""
    return [Document(files={name: each}) for each in contents]


def parsing(parse: Callable[[bytes], object], name: str = "document") -> Callable[[Path], object]:
    """Reads the one file as bytes, for a parser of bytes."""
    return lambda folder: parse((folder / name).read_bytes())


class RefusedError(Exception):
    """A command refused the document: status 2 and one sentence."""


def command(*arguments: str) -> Callable[[Path], object]:
    """Runs a command of `rankwatch`, in which {} stands for the folder.

    It must end with a status.
    """

    def run(folder: Path) -> object:
        errors = io.StringIO()
        printed = io.TextIOWrapper(io.BytesIO(), errors="strict")
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            status = main([each.replace("{}", str(folder)) for each in arguments])
        if status == 2:
            raise RefusedError(errors.getvalue())
        if status not in (0, 1):
            raise AssertionError(f"status {status}")
        return status

    return run


COMMAND_REFUSES = (RefusedError,)


def of_command(
    name: str, documents: Callable[[Path], Sequence[Document]], *arguments: str, share: float = 2.0
) -> Reader:
    """A command of `rankwatch`, in which {} stands for the folder."""
    return Reader(name, documents, command(*arguments), COMMAND_REFUSES, share)
