"""One room for what users can write: nothing else opens, removes or renames a path, or connects to one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

PACKAGES = (
    "instrumentation/rankwatch",
    "agent/rankwatch_agent",
    "diagnosis/rankwatch_diagnosis",
    "cli/rankwatch_cli",
    "optional",
)
ROOM = "instrumentation/rankwatch/untrusted/"
OF_PATHS = frozenset(
    ("open", "unlink", "rename", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod", "mkdir", "connect")
) | {"bind", "rmtree", "read_text", "read_bytes", "write_text", "write_bytes"}
"""Methods and functions with these names, of any object."""
OF_OS = frozenset(
    ("remove", "replace", "link", "symlink", "mkfifo", "chown", "lchown", "makedirs", "removedirs", "renames")
) | {"truncate", "copy", "copyfile", "copytree", "copy2", "move", "copymode"}
"""Of the modules os and shutil."""
LOOKS = frozenset(
    ("iterdir", "glob", "rglob", "scandir", "listdir", "walk", "exists", "lexists", "is_file", "is_dir")
) | {"is_symlink", "stat", "lstat", "resolve", "realpath"}
"""What lists a folder, or asks what is at a path. A link in its way may lead to a file server that never
answers, which hangs the thread of the agent for ever."""
IN_THE_AGENT = (
    "instrumentation/rankwatch",
    "agent/rankwatch_agent",
    "optional/rankwatch_checkpoints",
    "optional/rankwatch_spans",
)


def looks(path: Path) -> Iterator[str]:
    """The names of functions that a module calls to look at a path."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            base = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            if base != "self" and not any(each.arg == "dir_fd" for each in node.keywords):
                yield node.func.attr


def calls(path: Path) -> Iterator[str]:
    """The names of functions that a module calls to do something with a path."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open":
            yield "open"
        elif isinstance(function, ast.Attribute):
            base = function.value.id if isinstance(function.value, ast.Name) else ""
            if base == "Folder":
                continue
            if any(each.arg in ("dir_fd", "src_dir_fd") for each in node.keywords):
                continue  # by a descriptor
            if function.attr == "rename" and len(node.args) == 2 and base != "os":
                continue  # of a Folder
            of_path = function.attr == "replace" and len(node.args) == 1 and not node.keywords
            if function.attr in OF_PATHS or of_path or (base in ("os", "shutil") and function.attr in OF_OS):
                yield f"{base}.{function.attr}" if base in ("os", "shutil") else function.attr


KERNEL = "what the kernel shows below /proc, /sys and /dev"
SETTING = "a file that root names in the agent's settings"
OWN = "a directory that the agent alone writes to"
PACKAGE = "a file of this package"
NAMED = "a file that a person names to a command, for reading or as its output"
DEMO = "the demo's own directory"
ALLOWED = {
    "instrumentation/rankwatch/blackbox/place.py": "the directory of all black boxes itself, and /proc",
    "optional/rankwatch_checkpoints/manifest.py": "the checkpoint that this process saves",
    "instrumentation/rankwatch/conventions/metrics.py": PACKAGE,
    "instrumentation/rankwatch/conventions/opentelemetry.py": PACKAGE,
    "instrumentation/rankwatch/hooks.py": KERNEL,
    "instrumentation/rankwatch/lifecycle.py": "/dev/null, and the program of this process",
    "instrumentation/rankwatch/processes.py": KERNEL,
    "instrumentation/rankwatch/settings.py": NAMED,
    "agent/rankwatch_agent/incidents/bundle.py": OWN,
    "agent/rankwatch_agent/incidents/limited_process.py": KERNEL,
    "agent/rankwatch_agent/incidents/evidence.py": OWN,
    "agent/rankwatch_agent/incidents/trackers.py": SETTING,
    "optional/rankwatch_spans/sending.py": SETTING,
    "agent/rankwatch_agent/runtime/pages.py": SETTING,
    "agent/rankwatch_agent/runtime/reread.py": SETTING,
    "agent/rankwatch_agent/runtime/state_file.py": OWN,
    "agent/rankwatch_agent/runtime/writers.py": KERNEL,
    "agent/rankwatch_agent/sources/gpu/reading/node.py": "opens the driver, no path",
    "agent/rankwatch_agent/sources/gpu/inventory.py": KERNEL,
    "agent/rankwatch_agent/sources/kernel_files.py": KERNEL,
    "agent/rankwatch_agent/sources/kernel_log_lines.py": KERNEL,
    "agent/rankwatch_agent/sources/nccl_ras/client.py": KERNEL,
    "agent/rankwatch_agent/sources/network.py": KERNEL,
    "agent/rankwatch_agent/sources/process_table.py": KERNEL,
    "agent/rankwatch_agent/sources/rdma_counters.py": KERNEL,
    "agent/rankwatch_agent/sources/xid.py": PACKAGE,
    "optional/rankwatch_checkpoints/child.py": KERNEL,
    "agent/rankwatch_agent/training/cost/collector.py": PACKAGE,
    "agent/rankwatch_agent/training/cost/price_table.py": SETTING,
    "agent/rankwatch_agent/training/life/ends.py": KERNEL,
    "agent/rankwatch_agent/training/series/ranks.py": KERNEL,
    "diagnosis/rankwatch_diagnosis/hang/worker.py": KERNEL,
    "diagnosis/rankwatch_diagnosis/opening.py": NAMED,
    "diagnosis/rankwatch_diagnosis/pages/html_page.py": PACKAGE,
    "cli/rankwatch_cli/commands/demo.py": NAMED,
    "cli/rankwatch_cli/commands/diagnose/straggler.py": NAMED,
    "cli/rankwatch_cli/commands/generate.py": NAMED,
    "cli/rankwatch_cli/commands/run.py": "the program that a person starts",
    "cli/rankwatch_cli/commands/runbook.py": PACKAGE,
    "cli/rankwatch_cli/commands/trace.py": "opens a gzip in an open file, no path",
    "cli/rankwatch_cli/demo/parts.py": DEMO,
    "cli/rankwatch_cli/demo/workspace.py": DEMO,
    "cli/rankwatch_cli/main.py": "/dev/null",
    "cli/rankwatch_cli/options.py": NAMED,
}
"""Modules outside the room that do something with paths, none of which a user of the node can influence."""

SAVED = "the checkpoint that this process saves, or that a child verifies with the rights of its user"
LOOKED_AT = {
    "instrumentation/rankwatch/automatic/launching.py": PACKAGE,
    "instrumentation/rankwatch/automatic/patches/distributed_checkpoints.py": SAVED,
    "instrumentation/rankwatch/automatic/patches/saving.py": SAVED,
    "optional/rankwatch_checkpoints/verify.py": SAVED,
    "agent/rankwatch_agent/incidents/dumps.py": SETTING,
    "agent/rankwatch_agent/sources/pods.py": "the socket of the kubelet",
    "agent/rankwatch_agent/sources/slurm.py": SETTING,
    "agent/rankwatch_agent/sources/disk.py": SETTING,
    "agent/rankwatch_agent/sources/ethtool.py": KERNEL,
    "agent/rankwatch_agent/sources/gpu/collector.py": KERNEL,
    "agent/rankwatch_agent/sources/pci.py": KERNEL,
    "agent/rankwatch_agent/sources/mounts.py": "where file systems are mounted, in a thread that may hang",
    "agent/rankwatch_agent/sources/nvrx.py": SETTING,
    "agent/rankwatch_agent/training/life/failures.py": OWN,
    "agent/rankwatch_agent/training/boxes/follower.py": "the folder of a run in one of root",
}
"""Modules that only look at paths, in processes that live as long as the agent or a training."""


def test_one_room() -> None:
    """A new module that opens, removes, renames or connects to a path has a reason here, or uses the room."""
    found = {
        str(path.relative_to(ROOT)): sorted(set(calls(path)))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    others = {name: what for name, what in found.items() if what and not name.startswith(ROOM)}
    unknown = {name: what for name, what in others.items() if name not in ALLOWED}
    assert unknown == {}
    assert others.keys() == ALLOWED.keys(), "a reason that nothing needs any more"


def test_one_room_for_looks() -> None:
    """A new module of agent and trainer that lists a folder, or asks what is at a path, has a reason here, or
    uses the room."""
    found = {
        str(path.relative_to(ROOT)): sorted(set(looks(path)))
        for package in IN_THE_AGENT
        for path in (ROOT / package).rglob("*.py")
    }
    others = {name: what for name, what in found.items() if what and not name.startswith(ROOM)}
    assert {name: what for name, what in others.items() if name not in {**ALLOWED, **LOOKED_AT}} == {}
    assert others.keys() - ALLOWED.keys() == LOOKED_AT.keys(), "a reason that nothing needs any more"
