"""What importing the agent brings in, and what it must not."""

from __future__ import annotations

import subprocess
import sys

_IMPORT_ALL = """
import importlib, pkgutil, sys, threading
import rankwatch_agent
for module in pkgutil.walk_packages(rankwatch_agent.__path__, "rankwatch_agent."):
    parts = ("diagnosis", "simulation", "commands.diagnose", "commands.simulate")  # for a workstation
    offline = module.name.startswith(tuple(f"rankwatch_agent.{part}" for part in parts))
    if module.name != "rankwatch_cli.__main__" and not offline:
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


def test_no_module_of_the_agent_imports_torch_or_starts_a_thread() -> None:
    """The agent runs where there is no torch, and importing it does nothing."""
    assert _run(_IMPORT_ALL) == "1"


def test_the_command_line_alone_needs_no_dependency() -> None:
    """`rankwatch --help` works without any extra, and little stands before a signal is held back."""
    assert _run(_IMPORT_CLI) == ""
