"""What commands print and write. No other module of this package prints, so that no name or text of a user
can steer the terminal of whoever looks at it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TextIO

from rankwatch.untrusted.paths import create_output
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.errors import UserError

_COLOURS: Mapping[str, str] = MappingProxyType(
    {"": "\x1b[1m", "red": "\x1b[1m\x1b[31m", "yellow": "\x1b[1m\x1b[33m", "green": "\x1b[1m\x1b[32m"}
)
_PLAIN = "\x1b[0m"


def show(*lines: str) -> None:
    """Print lines. A line break within one of them is a `?`, like all that would steer a terminal."""
    _print(lines, sys.stdout)


def show_verdict(head: str, *lines: str, colour: str = "") -> None:
    """Print lines below a headline. On a terminal it is bold and red, yellow, green, or in no colour."""
    _print((head, *lines), sys.stdout, colour if wants_colour(sys.stdout, os.environ) else None)


def show_text(text: str) -> None:
    """Print a text of several lines. What users have put into it must be printable already: a line break in a
    name would look like one of the text."""
    _print(text.removesuffix("\n").split("\n"), sys.stdout)


def show_json(value: object, *, indent: int | None = None) -> None:
    """Print a value as JSON."""
    print(as_json(value, indent=indent), flush=True)


def as_json(value: object, *, indent: int | None = None) -> str:
    """Return JSON in ASCII without control characters. Raises ValueError for a number that is not finite."""
    return json.dumps(value, allow_nan=False, indent=indent).replace("\x7f", "\\u007f")


def note(*lines: str) -> None:
    """Print lines about the work itself to standard error."""
    _print(lines, sys.stderr)


def progress(text: str) -> None:
    """Print how far the work is, in place of what this call has printed before."""
    print(f"\r{printable(text)}", end="", file=sys.stderr, flush=True)


def wants_colour(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Return True on a terminal, unless NO_COLOR is set (no-color.org). `stream`: None for a closed
    output."""
    return stream is not None and stream.isatty() and not environ.get("NO_COLOR")


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write. Raises UserError where that fails, or what the block writes does."""
    try:
        with os.fdopen(create_output(path), "wb") as file:
            yield file
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror or error}") from None


def write_file(path: Path, text: str) -> None:
    """Write a text in UTF-8. Raises UserError where that fails."""
    with open_output(path) as file:
        file.write(text.encode())


def _print(lines: Any, stream: TextIO | None, colour: str | None = None) -> None:
    shown = [printable(each, keep="\t") for each in lines]
    if colour is not None:
        shown[0] = f"{_COLOURS[colour]}{shown[0]}{_PLAIN}"
    if shown and stream is not None:
        print("\n".join(shown), file=stream, flush=True)
