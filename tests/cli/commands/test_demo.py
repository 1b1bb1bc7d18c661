"""`rankwatch demo` checks its options and extras before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_cli.commands.demo import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2"], "expected at least 3"),
        (["--healthy", "nan"], "--healthy is nan"),
        (["--healthy", "-5"], "--healthy is -5"),
        (["--deadline", "0"], "--deadline is 0"),
        (["--healthy", "3", "--keep"], "--keep goes with"),
        (["--result", "/nonexistent/x.json"], "could not write --result"),
    ],
)
def test_invalid_options(arguments: list[str], message: str) -> None:
    """They are refused with one sentence before any process starts."""
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_missing_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One error names all missing extras, so that the user installs them with one command."""
    monkeypatch.setattr("rankwatch_cli.commands.demo.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[agent,alerts,trainer\]'"):
        main(["--result", str(tmp_path / "x.json")])
