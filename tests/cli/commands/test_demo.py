"""`rankwatch demo` refuses at once what it would find out only at the end."""

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
def test_what_cannot_work_is_refused_at_once(arguments: list[str], message: str) -> None:
    """One sentence, before anything is started."""
    with pytest.raises(UserError, match=message):
        main(arguments)


def test_a_missing_extra_is_named_with_all_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, and not one after another."""
    monkeypatch.setattr("rankwatch_cli.commands.demo.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install '\.\[agent,alerts,trainer\]'"):
        main(["--result", str(tmp_path / "x.json")])
