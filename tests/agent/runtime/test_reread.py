"""Files are read again when they change, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.reread import Reread


class Loader:
    """Reads a file and counts how often; refuses the content `broken`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.loads = 0

    def __call__(self) -> str:
        self.loads += 1
        text = self.path.read_text()
        if text == "broken":
            raise UserError("could not use it")
        return text


def test_a_file_that_stays_is_read_once(tmp_path: Path) -> None:
    """However often it is asked for, and where its change is of no use too."""
    path = tmp_path / "file"
    path.write_text("one")
    loader = Loader(path)
    value = Reread([path], loader)
    assert [value.current() for _ in range(3)] == ["one"] * 3
    assert loader.loads == 1
    path.write_text("broken")
    assert [value.current() for _ in range(3)] == ["one"] * 3
    assert loader.loads == 2


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    """Even to a file of the same size and time."""
    one, two, link = tmp_path / "one", tmp_path / "two", tmp_path / "link"
    for path in (one, two):
        path.write_text(path.name)
        os.utime(path, ns=(1, 1))
    link.symlink_to(one)
    value = Reread([link], Loader(link))
    assert value.current() == "one"
    link.unlink()
    link.symlink_to(two)
    assert value.current() == "two"


def test_a_change_while_the_file_is_read_is_seen_later(tmp_path: Path) -> None:
    """The second of two writes in a row is not lost."""
    path = tmp_path / "file"
    path.write_text("one")

    def load() -> str:
        text = path.read_text()
        if text == "one":
            path.write_text("second")
        return text

    value = Reread([path], load)
    assert value.current() == "second"


def test_what_is_of_no_use_at_the_start_is_told_at_once(tmp_path: Path) -> None:
    """There is no former value to go on with."""
    path = tmp_path / "file"
    path.write_text("broken")
    with pytest.raises(UserError, match="could not use it"):
        Reread([path], Loader(path))
