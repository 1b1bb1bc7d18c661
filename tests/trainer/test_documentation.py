"""docs/trainer.md is complete, and its commands are valid."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields

import pytest

from rankwatch_trainer.config import TrainerConfig, parse_config
from rankwatch_trainer.faults import FAULTS, Fault, parse_fault
from support.paths import ROOT

PAGE = (ROOT / "docs" / "trainer.md").read_text()
COMMANDS = re.findall(r"^\$ (.*-m rankwatch_trainer.*)$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("name", [field.name for field in fields(TrainerConfig)])
def test_flag(name: str) -> None:
    """Every flag has its own row in the table."""
    assert f"\n| `--{name.replace('_', '-')}` |" in PAGE


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_fault(fault: Fault) -> None:
    """Every fault has one row in the table, which names its parameters."""
    (row,) = re.findall(rf"^\| `{fault.name}` \|.*$", PAGE, flags=re.MULTILINE)
    for name in fault.parameters:
        assert f"`{name}` (" in row


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command: str) -> None:
    """The trainer accepts the flags and faults of every command on the page."""
    assert re.match(r"([A-Z_]+=\S+ )*(torchrun |python -m rankwatch_trainer)", command)
    _, arguments = command.split("-m rankwatch_trainer")
    for fault in parse_config(shlex.split(arguments)).fault:
        parse_fault(fault, present_step=1, world_size=4)


def test_fault_file() -> None:
    """The trainer accepts every line of the example."""
    (content,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in content.splitlines():
        if not line.startswith("#"):
            parse_fault(line, present_step=9, world_size=4)
