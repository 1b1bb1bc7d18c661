"""What an import brings in, and what it must not."""

from __future__ import annotations

import subprocess
import sys

_IMPORT_ALL = """
import importlib, pkgutil, sys, threading
import rankwatch_agent
for module in pkgutil.walk_packages(rankwatch_agent.__path__, "rankwatch_agent."):
    importlib.import_module(module.name)
print(*[name for name in ("torch", "numpy") if name in sys.modules], threading.active_count())
"""
_IMPORT_CLI = """
import sys
import rankwatch_cli.main
late = {"prometheus_client", "torch", "http", "rankwatch"}
print(*sorted({name.partition(".")[0] for name in sys.modules} & late))
"""


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_agent() -> None:
    """The agent runs on nodes without torch, and importing it starts nothing."""
    assert _run(_IMPORT_ALL) == "1"


def test_importing_the_command_line() -> None:
    """`rankwatch --help` works without extras, and little is loaded before signals are held."""
    assert _run(_IMPORT_CLI) == ""
