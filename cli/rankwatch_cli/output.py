"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.runtime.errors import UserError


def write_file(path: Path, text: str) -> None:
    """Write a text in UTF-8. Raises UserError where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"could not write {path}: {error.strerror or error}") from None
