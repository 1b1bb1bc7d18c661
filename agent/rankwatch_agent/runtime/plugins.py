"""What optional distributions add by entry points: an entry names a module, which is loaded when it is asked
for. Ours are in `optional`; anybody's may be beside them."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import NamedTuple

from rankwatch_agent.runtime.errors import UserError

SOURCES = "rankwatch.sources"
"""Collectors of the agent: the module has a `source` of the entry's name."""
COMMANDS = "rankwatch.commands"
"""Subcommands of `rankwatch`: the module has `main(arguments)`, which returns the exit status; `HELP`, one
line; and, where `main` imports a library, perhaps `EXTRA`."""
SUBJECTS = "rankwatch.subjects"
"""Subjects of `rankwatch diagnose`, like commands."""


class Command(NamedTuple):
    """A subcommand, or a subject of one. `main(arguments)` in its module returns the exit status."""

    module: str
    help: str
    """One line."""
    extra: str = ""
    """The extra of rankwatch that brings what it imports; empty for none."""


def added(group: str) -> dict[str, str]:
    """Return the modules of a group by the name of their entry, in order of the names."""
    return {each.name: each.value for each in sorted(entry_points(group=group), key=lambda each: each.name)}


def added_commands(group: str) -> dict[str, Command]:
    """Load what a group adds, to say what it is. One that cannot be loaded says so."""
    found = {}
    for name, module in added(group).items():
        try:
            loaded = load(module)
            found[name] = Command(module, loaded.HELP, getattr(loaded, "EXTRA", ""))
        except (UserError, AttributeError) as error:
            found[name] = Command(module, f"({error})")
    return found


def load(module: str) -> ModuleType:
    """Import a module that another distribution added. Raises UserError for one that cannot be."""
    try:
        return import_module(module)
    except Exception as error:
        raise UserError(f"could not load {module}: {error or type(error).__name__}") from error
