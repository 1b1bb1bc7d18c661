"""Text for people, out of names that a training process chose."""

from __future__ import annotations


def printable(text: str) -> str:
    """The same with a question mark for each control character, which could steer a terminal; lines stay."""
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)
