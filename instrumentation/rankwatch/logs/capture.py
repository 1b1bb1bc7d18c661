"""Keeps what this process logs and prints: records of `logging`, and lines of standard output and error.

Nothing is added to the root logger. A handler there would silence `logging.basicConfig`, and loggers that do
not propagate (transformers, Lightning) would never reach it. Instead `Logger.callHandlers` is wrapped, as
Sentry does it: whatever a logger lets through is kept, wherever its handlers send it. `write` of the two
streams is wrapped on the object itself, which stays what it was: terminal, descriptor, encoding. Output of
C code (NCCL) does not pass through them, and is not seen.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, TextIO

from rankwatch.logs.json_lines import current_step, is_on_device, message_of, severity_number, stack_of
from rankwatch.logs.lines import LONGEST_BYTES, SLOTS, LineWriter, Source
from rankwatch.untrusted.folders import Folder

_LONGEST_OUTPUT = SLOTS * LONGEST_BYTES
"""Characters of one write that are looked at; more would not fit the file."""
_MOST_ARGUMENTS = 32
_writer: LineWriter | None = None
"""Writer that lines go to; None before the first run, and in a forked child, which is not the rank."""
_installed = False
_within: set[int] = set()
"""Threads inside `Logger.callHandlers`. Mostly empty, which costs less to see than a thread's variable."""


def keep_lines(folder: Folder, name: str, *, copied: bool) -> None:
    """Keep the newest lines of this process in a new file. Raises OSError if it cannot be made.

    copied: as of `LineWriter`.
    """
    global _writer, _installed
    before, _writer = _writer, LineWriter(folder, name, copied=copied)
    if before is not None:
        before.close()
    if not _installed:
        _installed = True
        atexit.register(_end)
        os.register_at_fork(after_in_child=_forget)
        logging.Logger.callHandlers = _watched(logging.Logger.callHandlers)  # type: ignore[assignment]
    for stream, source in ((sys.stdout, Source.STDOUT), (sys.stderr, Source.STDERR)):
        if stream is not None and not hasattr(stream.write, "watched_as"):
            _watch(stream, source)


def _forget() -> None:
    global _writer
    _writer = None
    _within.clear()  # other threads of the parent do not exist here


def _end() -> None:
    if _writer is not None:
        with contextlib.suppress(OSError):
            _writer.flush()


def _watched(call_handlers: Callable[..., Any]) -> Callable[[logging.Logger, logging.LogRecord], None]:
    # Variables of the closure: those of the module may be gone while the interpreter ends.
    within, keep, own_thread = _within, _keep_record, get_ident

    def callHandlers(self: logging.Logger, record: logging.LogRecord) -> None:  # noqa: N802 - as in logging
        thread = own_thread()
        if thread in within:
            call_handlers(self, record)
            return
        try:
            within.add(thread)  # what handlers write to standard error is this record once more
            call_handlers(self, record)
        finally:
            try:
                keep(record)  # the text of an argument may come from code that logs
            finally:
                within.discard(thread)

    return callHandlers


def _keep_record(record: logging.LogRecord) -> None:
    writer = _writer
    if writer is None or record.levelno < logging.INFO:
        return
    try:
        text = f"{record.name}: {_message(record)}"
        if record.exc_info or record.exc_text:
            text += f"\n{stack_of(record)}"
        severity, step = severity_number(record.levelno), current_step()
        for line in text.split("\n")[-SLOTS:]:
            writer.write(line, source=Source.LOG, severity=severity, step=step)
    except Exception:  # noqa: BLE001 - a line that is not kept must not end the training
        return


def _message(record: logging.LogRecord) -> str:
    """Return the message. A tensor on a device is not formatted: that would wait for the device."""
    made = getattr(record, "message", None)  # by a formatter before
    if isinstance(made, str):
        return made
    arguments = record.args.values() if isinstance(record.args, dict) else record.args or ()
    if any(_holds_device_tensor(each) for each in (record.msg, *list(arguments)[:_MOST_ARGUMENTS])):
        return str(record.msg) if isinstance(record.msg, str) else f"<{type(record.msg).__name__}>"
    return message_of(record)


def _holds_device_tensor(value: object) -> bool:
    if isinstance(value, dict):
        return any(is_on_device(each) for each in list(value.values())[:_MOST_ARGUMENTS])
    if isinstance(value, list | tuple):
        return any(is_on_device(each) for each in value[:_MOST_ARGUMENTS])
    return is_on_device(value)


def _watch(stream: TextIO, source: Source) -> None:
    """Keep the lines that are written to a stream. One that allows no such attribute is left alone."""
    original = stream.write
    within, own_thread = _within, get_ident  # as above
    begun = ""
    """The line that has not ended yet."""

    def keep(text: str) -> None:
        nonlocal begun
        writer = _writer
        if writer is None:
            return
        whole: Sequence[str]
        if len(text) <= LONGEST_BYTES and text.find("\n") == len(text) - 1:  # most often one line ends here
            whole, begun = (begun + text[:-1],), ""
        else:
            *whole, begun = (begun + text[-_LONGEST_OUTPUT:]).split("\n")
        step = current_step()
        for line in whole[-SLOTS:]:
            shown = line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
            if shown:
                writer.write(shown, source=source, severity=0, step=step)

    def write(text: str) -> int:
        nonlocal begun
        try:  # to keep it first, because whoever reads it may end this process
            if within and own_thread() in within:
                pass
            elif "\n" in text:
                keep(text)
            else:
                begun += text[-_LONGEST_OUTPUT:]  # `print` writes each of its arguments alone
                if len(begun) > LONGEST_BYTES:  # a progress bar draws over its line
                    begun = begun[begun.rfind("\r", 0, -1) + 1 :][:LONGEST_BYTES]
        except Exception:  # noqa: BLE001 - as above
            return original(text)
        return original(text)

    write.watched_as = source  # type: ignore[attr-defined]
    try:
        stream.write = write  # type: ignore[method-assign]
    except (AttributeError, TypeError):
        return
