"""`rankwatch diagnose SUBJECT`: which rank, which cause, what it cost; from files, after the fact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from rankwatch.settings import SentenceParser
from rankwatch_agent.runtime import plugins

SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        "straggler": "which rank, stage or cause slows a run down, from a table of operations",
        "hang": "which rank a hung or desynchronised run waits for, from flight-recorder dumps",
        "run": "everything at once, from the black boxes of a run, live or dead",
        "loss": "at which steps a loss diverged, spiked or became NaN, from a table or a log",
    }
)
"""Subject of the core -> one line of help; each is a module beside this one with its `main(arguments)`."""


def main(arguments: Sequence[str]) -> int:
    """Diagnose the subject asked for; returns the exit status. Raises UserError."""
    added = {} if arguments[:1] and arguments[0] in SUBJECTS else plugins.added_commands(plugins.SUBJECTS)
    subjects = {**SUBJECTS, **{name: each.help for name, each in added.items()}, **SUBJECTS}
    listing = "\n".join(f"  {name:<12} {text}" for name, text in subjects.items())
    parser = SentenceParser(
        prog="rankwatch diagnose",
        usage="rankwatch diagnose SUBJECT ...",
        description="Name the rank and the cause, from files. Each subject prints text, or JSON with --json.",
        epilog=f"subjects:\n{listing}\n\n`rankwatch diagnose SUBJECT --help` has the details.",
    )
    parser.add_argument("subject", choices=tuple(subjects), metavar="SUBJECT", help="see below")
    subject = parser.parse_args(arguments[:1]).subject
    ours = subject in SUBJECTS
    module = import_module(f"{__name__}.{subject}") if ours else plugins.load(added[subject].module)
    entry: Callable[[Sequence[str]], int] = module.main
    return entry(arguments[1:])
