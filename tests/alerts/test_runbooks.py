"""What the runbooks tell people to type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rankwatch
from rankwatch.conventions import environment
from support.paths import ROOT
from support.recorded.runs import RUNS, Recorded

RUNBOOKS = ROOT / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*.md"))
TOOLS = ("jq", "rankwatch", "py-spy", "nvidia-smi")
_TAKES_PID = re.compile(r"^ *(PID=.*)$", re.MULTILINE)


def _commands(text: str) -> str:
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tools_and_variables_are_listed_at_the_top(page: Path) -> None:
    """So that nobody finds out in the middle that one is missing."""
    head, body = page.read_text().split("## Meaning")
    commands = _commands(body)
    for tool in TOOLS:
        if re.search(rf"(?:^|[|;(]| )\s*{tool}(?:\s|$)", commands, re.MULTILINE):
            assert f"`{tool}`" in head, tool
    if "$BOXES" in commands:
        default = environment.DEFAULT_DIRECTORY
        assert f"BOXES=${{{environment.DIRECTORY}:-{default}}}" in head


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_directory_of_black_boxes(page: Path) -> None:
    """Commands use the variable, which follows the trainer's setting."""
    assert page.read_text().count(str(environment.DEFAULT_DIRECTORY)) <= 1


@pytest.mark.parametrize("each", [each for each in RUNS if each.alert], ids=lambda each: each.run)
def test_pictures_of_faults(each: Recorded) -> None:
    """A fault with a picture has it on the page of its alert, with what one sees in words."""
    page = (RUNBOOKS / f"{each.alert}.md").read_text()
    assert f"](../docs/images/dashboard-run-debug-{each.run}.png)\n\nWhat you see" in page


@pytest.mark.process
def test_pid_command(tmp_path: Path) -> None:
    """Read from the rank's black box by the command as it is printed; there is no other way to it."""
    taken = {line for page in PAGES for line in _TAKES_PID.findall(page.read_text())}
    (command,) = taken
    with rankwatch.start(directory=tmp_path, run="r", rank=0):
        names = {"BOXES": str(tmp_path), "RUN": "r", "RANK": "0"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        shell = ["bash", "-euo", "pipefail", "-c", f'{command}\necho "$PID"']
        done = subprocess.run(
            shell, env={**os.environ, **names, "PATH": path}, capture_output=True, text=True, check=True
        )
    assert done.stdout.strip() == str(os.getpid())
