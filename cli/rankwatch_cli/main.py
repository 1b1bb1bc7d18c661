"""The `rankwatch` command: finds the subcommand and turns its errors into exit statuses.

Only the module of the chosen subcommand is imported, so `rankwatch --help` needs no dependency. Signals that
the subcommand waits for are blocked before any module that takes time to load.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from rankwatch_agent.runtime import plugins
from rankwatch_agent.runtime.errors import UserError

if TYPE_CHECKING:
    from rankwatch.settings import SentenceParser

USAGE_STATUS = 2
"""Exit status for a mistake that the user can correct."""
_BROKEN_PIPE_STATUS = 141
"""Status of a program that SIGPIPE ended: 128 + 13."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_LISTED = """
agent      agent     watch the training runs and the hardware of this node, serve /metrics
run        -         start a training, any command, and record it without a change of its code
profile    diagnosis have the slowest next steps of a rank recorded by torch.profiler
ls         -         list the runs of this node: state, step, age, verdict
summary    -         print what a run did, in a few lines
blackbox   -         print what a black box holds, of a live rank or a dead one
logs       -         print the newest lines that the ranks of a run have logged and printed
diagnose   diagnosis name the rank and the cause of a slowdown, a hang or a bad loss
compare    diagnosis say what became worse from one run to another, for CI
goodput    diagnosis say what the time of a run went to, what it cost, what would be better
report     diagnosis write a page or a post-incident review about a run
runbook    -         print what to do about an alert, with the labels of a firing one
table      diagnosis write the operations of a run as a table, for any window of steps
trace      diagnosis write a run as a trace that Perfetto opens
reference  -         print the reference of metrics, indicators, settings or rules
generate   alerts    write rules, Alertmanager, dashboards and runbooks of your settings into a folder
demo       -         slow a rank of a real run down and print the alert that names it
"""
COMMANDS: Mapping[str, plugins.Command] = MappingProxyType(
    {
        name: plugins.Command(f"rankwatch_cli.commands.{name}", text, extra.strip("-"))
        for name, extra, text in (line.split(maxsplit=2) for line in _LISTED.strip().splitlines())
    }
)
"""The subcommands of the core, by the names they are called by."""
_HELD: Mapping[str, tuple[signal.Signals, ...]] = {"agent": (signal.SIGUSR1, signal.SIGUSR2)}
"""Signals that are blocked before the module of a command is imported, and stay pending until it handles
them: they may come before the agent is up."""

EXTRAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "grafana_foundation_sdk": ("dashboards",),
        "jinja2": ("diagnosis",),
        "msgspec": ("agent", "diagnosis"),
        "opentelemetry": ("agent",),
        "prometheus_client": ("agent",),
        "promql_parser": ("alerts",),
        "yaml": ("alerts",),
        "numpy": ("diagnosis", "trainer"),
        "pyarrow": ("diagnosis",),
        "torch": ("trainer",),
    }
)
"""Third-party module -> the extras of the rankwatch distribution that bring it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, or 2 for a mistake of the user.

    130 for Ctrl-C, and 141 if the reader of the output has gone, as after `| head`.
    """
    if arguments is None:
        arguments = sys.argv[1:]
        _hold_signals(arguments)  # first of all, and only if the process is the command's own
    from rankwatch import __version__
    from rankwatch.errors import SettingError
    from rankwatch_cli.output import note, show

    commands = commands_for(arguments)
    parser = _parser(commands)
    # Only the first word is parsed here. The rest belongs to the subcommand, its --help included.
    chosen = parser.parse_args(arguments[:1])
    if chosen.version:
        show(f"rankwatch {__version__}")
        return 0
    if chosen.command is None:
        parser.print_help()
        return USAGE_STATUS
    try:
        load = import_module if chosen.command in COMMANDS else plugins.load
        status: int = load(commands[chosen.command].module).main(arguments[1:])
        if sys.stdout is not None:
            sys.stdout.flush()  # an error of writing shows here, not when the interpreter ends
        return status
    except (UserError, SettingError) as error:
        note(f"rankwatch {chosen.command}: {error}")
        return USAGE_STATUS
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE_STATUS
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _drop_output()
        note(f"rankwatch {chosen.command}: could not write the output: {error.strerror}")
        return USAGE_STATUS
    except ModuleNotFoundError as error:
        return _missing_module(chosen.command, commands[chosen.command].extra, error)
    except KeyboardInterrupt:
        return 130


def _hold_signals(arguments: Sequence[str]) -> None:
    """Block the signals that would end the process before the command can handle them."""
    if arguments and arguments[0] in _HELD:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HELD[arguments[0]])


def commands_for(arguments: Sequence[str]) -> Mapping[str, plugins.Command]:
    """Return the subcommands by name. Those that were added are looked up only for a name that is not the
    core's."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS
    return {**COMMANDS, **plugins.added_commands(plugins.COMMANDS), **COMMANDS}


def _parser(commands: Mapping[str, plugins.Command]) -> SentenceParser:
    from rankwatch.settings import SentenceParser

    listing = "\n".join(f"  {name:<12} {command.help}" for name, command in commands.items())
    parser = SentenceParser(
        prog="rankwatch",
        usage="rankwatch [--help] [--version] COMMAND ...",
        description="Observability for distributed PyTorch training: names the slow rank, node and cause.",
        epilog=f"commands:\n{listing}\n\n`rankwatch COMMAND --help` has the details.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("command", nargs="?", choices=tuple(commands), metavar="COMMAND", help="see below")
    return parser


def _drop_output() -> None:
    """Discard what is still buffered; the interpreter would fail to write it again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _missing_module(command: str, own: str, error: ModuleNotFoundError) -> int:
    """Say which extra brings the missing module. Any other module is a bug: raise again."""
    module = (error.name or "").partition(".")[0]
    extras = EXTRAS.get(module)
    if extras is None:
        raise error
    extra = own if own in extras else extras[0]
    from rankwatch_cli.output import note

    note(
        f"rankwatch {command}: could not import {module}: "
        f"in a clone of rankwatch, pip install '.[{extra}]' brings it"
    )
    return USAGE_STATUS
