"""Headers come from a file of NAME=VALUE lines, whose content is never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.otlp.export import load_headers, parse_headers


def test_lines_are_names_and_values() -> None:
    """A value may hold an equals sign; empty lines and comments count for nothing."""
    text = "# credentials\n\nAuthorization=Basic dXNlcjo=\nX-Scope-OrgID = team \n"
    assert parse_headers(text) == {"Authorization": "Basic dXNlcjo=", "X-Scope-OrgID": "team"}


@pytest.mark.parametrize("line", ["secret", "=secret", "a b=secret", "name=secret\x00", "name=secr\u00e9t"])
def test_a_line_that_is_wrong_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    """The sentence does not show the secret."""
    path = tmp_path / "headers"
    path.write_text(f"ok=1\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        load_headers(path)
    assert str(raised.value) == f"could not use otlp_headers_file {path}: expected NAME=VALUE in line 2"


def test_a_file_that_cannot_be_read_is_told_in_one_sentence(tmp_path: Path) -> None:
    """Missing, or no text at all."""
    with pytest.raises(UserError, match=r"could not read otlp_headers_file .*: No such file"):
        load_headers(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="could not read otlp_headers_file"):
        load_headers(tmp_path / "binary")
