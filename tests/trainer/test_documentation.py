"""docs/trainer.md leaves nothing out, and its commands are ones the trainer takes."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields

import pytest

from rankwatch_trainer.config import TrainerConfig, parse_config
from rankwatch_trainer.faults.kinds import FAULTS, Fault
from rankwatch_trainer.faults.specification import parse_fault
from support.paths import ROOT

PAGE = (ROOT / "docs" / "trainer.md").read_text()
COMMANDS = re.findall(r"^\$ (.*-m rankwatch_trainer.*)$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("name", [field.name for field in fields(TrainerConfig)])
def test_every_flag_is_documented(name: str) -> None:
    """With a row of its own."""
    assert f"\n| `--{name.replace('_', '-')}` |" in PAGE


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.name)
def test_every_fault_is_documented_with_its_parameters(kind: type[Fault]) -> None:
    """In one row of the table."""
    (row,) = re.findall(rf"^\| `{kind.name}` \|.*$", PAGE, flags=re.MULTILINE)
    for field in fields(kind):  # type: ignore[arg-type]  # every Fault is a dataclass
        assert f"`{field.name}` (" in row


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_ones_the_trainer_takes(command: str) -> None:
    """Their flags and faults can be read."""
    assert re.match(r"([A-Z_]+=\S+ )?(torchrun |python -m rankwatch_trainer)", command)
    _, arguments = command.split("-m rankwatch_trainer")
    for fault in parse_config(shlex.split(arguments)).fault:
        parse_fault(fault, present_step=1, world_size=4)


def test_the_lines_of_the_fault_file_can_be_read() -> None:
    """As each rank reads them."""
    (content,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    for line in content.splitlines():
        if not line.startswith("#"):
            parse_fault(line, present_step=9, world_size=4)
