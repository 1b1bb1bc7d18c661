"""Text out of files, flags and file names, made fit for one line of a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with a `?` for each line break, escape sequence or broken character in it."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
