"""The table in docs/security.md of what an agent shows by its rights, held against real agents.

They watch a node with runs of three users:

    open      umask 022, files in a folder that everybody may enter
    home      umask 022, files in a folder that only its user may enter
    private   umask 077, files in such a folder, too

Of each run rank 0 lives, saves a checkpoint and serves a flight recorder; rank 1 has crashed, or has left
torchrun's error file. Processes, boxes, sockets and files are real; GPUs and the kubelet are not.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from rankwatch_agent.runtime.source import COLLECTORS
from support.agent.process import agent_process, until
from support.deploy.chart import DROP_INS, container, directives
from support.gpu.nvml import FakeDriver, build_library
from support.gpu.nvml_node import hopper_node
from support.paths import ROOT, TESTS
from support.processes.users import ALICE, BOB, CAROL, as_user, node_directory, run_as
from support.sources.kubelet import devices, kubelet, pod
from support.sources.node_tree import NodeTree, build_node
from support.training.ranks import go_on, rank

AGENT = 65532
"""User id of the agent in the chart; no user of the machine has it."""
PROGRAMS = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
"""Where py-spy is, which lies beside Python."""
JOB = "4711"
"""Of SLURM; all of them belong to it."""
USERS = {"open": BOB, "home": CAROL, "private": ALICE}
_RANK_0 = """
import json
from support.training.recorder import completed, reply, worker_server
steps(5)
checkpoint = Path(os.environ["FOLDER"]) / "model.safetensors"
with run.checkpoint("save", path=checkpoint):
    header = b'{"weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    checkpoint.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
note = Path(directory) / run_id / "0.checkpoints"
saved = json.loads(note.read_text())
for each in saved["checkpoints"]:
    each["ended"] -= 60  # the agent gives other ranks ten seconds
note.write_text(json.dumps(saved))
dump = {"fr_trace_json": reply(completed(0, 5.0), enqueued=1, done=1)}
run._writer.expect_questions()
with worker_server(Path(directory) / run_id / "0.sock", lambda: dump):
    print("ready", flush=True)
    while True:
        steps(1, 0.1)
"""
_CRASHES = "steps(5)\nready()\nos.kill(os.getpid(), signal.SIGSEGV)"
_TELLS = """
import json
steps(5)
error = Path(os.environ["FOLDER"]) / "error.json"
error.write_text(json.dumps({"message": {"message": "ValueError: no such batch", "extraInfo": {}}}))
(Path(directory) / run_id / "1.error_file").write_text(str(error))
ready()
os.kill(os.getpid(), signal.SIGKILL)
"""
_ENDED_AT = 0.5
_ENDED_LONG_AGO = f"""
time.monotonic = lambda: {_ENDED_AT}
box("ended", 0, capacity=256)
"""
"""It ended when the machine had just been started, before all other ranks."""


class Node(NamedTuple):
    """What the agents of all tiers watch."""

    folder: Path
    boxes: Path
    tree: NodeTree
    driver: FakeDriver
    kubelet_socket: Path

    @property
    def closed(self) -> Path:
        """A folder in one that only its user may enter."""
        return self.folder / "private" / "checkpoints"


@contextlib.contextmanager
def shared_node() -> Iterator[Node]:
    """The node, for as long as its living ranks are needed."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankwatch-")))
        folder.chmod(0o711)
        boxes, sources = owned(folder / "boxes", 0, 0o1777), owned(folder / "sources", 0, 0o755)
        living = []
        for run, user in USERS.items():
            owned(folder / run, user, 0o755 if run == "open" else 0o700)
            variables = (f"FOLDER={folder / run}", "RANKWATCH_LOG_LINES=200", f"SLURM_JOB_ID={JOB}")
            umask = 0o077 if run == "private" else 0o022
            before = f"sys.path.insert(0, {str(TESTS)!r}); os.umask({umask})"
            how = {"run": run, "world": 2, "before": before, "prefix": ("env", *variables, *as_user(user))}
            living.append(stack.enter_context(rank(boxes, _RANK_0, **how)))
            with rank(boxes, _TELLS if run == "home" else _CRASHES, number=1, **how) as ends:
                go_on(ends)
                assert ends.wait() in (-signal.SIGSEGV, -signal.SIGKILL)
        (folder / "private" / "checkpoints").mkdir()
        gpus = hopper_node(1)
        gpus["gpus"][0]["processes"]["compute"] = [{"pid": each.pid, "memory": 1 << 30} for each in living]
        running = stack.enter_context(kubelet(owned(folder / "kubelet", 0, 0o750)))
        running.answer = pod("p", devices("nvidia.com/gpu", gpus["gpus"][0]["uuid"]))
        driver = FakeDriver(sources, build_library(sources), gpus)
        yield Node(folder, boxes, build_node(sources / "node"), driver, running.socket)


def owned(path: Path, user: int, mode: int) -> Path:
    """A new folder of a user."""
    path.mkdir()
    os.chown(path, user, user)
    path.chmod(mode)
    return path


class Seen(NamedTuple):
    """What an agent shows: page of metrics, files of its bundles, and whether it removed an ended run."""

    page: str
    evidence: Path
    log: str
    removed: bool

    def has(self, pattern: str) -> bool:
        """True if a sample begins so."""
        return re.search(f"^rankwatch_{pattern}", self.page, re.MULTILINE) is not None

    def ok(self, *collectors: str) -> bool:
        """True if these collectors work."""
        return all(
            self.has(rf'collector_state{{collector="{each}[^}}]*state="ok"}} 1') for each in collectors
        )

    @property
    def text(self) -> str:
        """All that it says: page, log, and what its bundles lack."""
        files = (*self.evidence.glob("*/manifest.json"), *self.evidence.glob("*/stacks/*.process.txt"))
        return "\n".join((self.page, self.log, *(each.read_text(errors="replace") for each in files)))

    def kept(self, run: str, name: str) -> str:
        """A file of the bundle of a run; empty if it is missing."""
        found = [each.read_text(errors="replace") for each in self.evidence.glob(f"*-{run}-*/{name}")]
        return "".join(found)


KERNEL_LOG = "the kernel log: XIDs, NICs, kills for lack of memory"
FEATURES: Mapping[str, Callable[[Seen], bool]] = {
    "runs of all users: ranks, steps, losses, cost": lambda seen: all(
        seen.has(rf'rank_state{{[^}}]*rank="0",run="{run}",state="running"}} 1') for run in USERS
    ),
    "their processes: blocked threads, file systems": lambda seen: all(
        seen.has(rf'{name}{{[^}}]*run="private"')
        for name in ("rank_uninterruptible_threads", "run_mount_responding")
    ),
    "GPUs and who is on them, NICs, host, clock": lambda seen: (
        seen.has("gpu_process_memory_bytes") and seen.ok("gpu", "xid", "rdma", "network", "host", "clock")
    ),
    "evidence of incidents, with a verdict": lambda seen: (
        '"state"' in seen.kept("private", "verdict.json") != ""
    ),
    "log lines and crash reports": lambda seen: _told(seen, "open"),
    "the same of a run with umask 077": lambda seen: _told(seen, "private"),
    "flight recorders": lambda seen: all(
        seen.has(rf'flight_recorder_pulls_total{{[^}}]*outcome="success",rank="0",run="{run}"')
        and seen.kept(run, "flight_recorder/0.json") != ""
        for run in ("open", "private")
    ),
    "memory of ended runs is freed": lambda seen: seen.removed,
    "verification of checkpoints, where all may read them": lambda seen: _verified(seen, "open"),
    "the same in a folder closed to others": lambda seen: _verified(seen, "home"),
    "the same, with umask 077": lambda seen: _verified(seen, "private"),
    "torchrun's error files, which lie in such a folder": lambda seen: seen.has(
        r'rank_failures_total{exception="ValueError"[^}]*run="home"} 1'
    ),
    "Python stacks of stalled ranks": lambda seen: "Thread" in seen.kept("private", "stacks/0.txt"),
    KERNEL_LOG: lambda seen: seen.ok("kernel_log"),
    "SLURM jobs without a job map": lambda seen: seen.has(rf'gpu_slurm_info{{[^}}]*slurm_job="{JOB}"'),
    "pods, by the kubelet": lambda seen: seen.has("gpu_pod_info{"),
    "disks of `checkpoint_paths` in such a folder": lambda seen: seen.ok("disk"),
    "kernel stacks of stalled ranks": lambda seen: "[<0>]" in seen.kept("private", "stacks/0.process.txt"),
}
"""What somebody wants to see -> whether it is there. docs/security.md lists these in its table."""


def _told(seen: Seen, run: str) -> bool:
    crash = rf'rank_failures_total{{exception="SIGSEGV"[^}}]*run="{run}"}} 1'
    return "ready" in seen.kept(run, "logs/0.lines.jsonl") and seen.has(crash)


def _verified(seen: Seen, run: str) -> bool:
    return seen.has(rf'checkpoint_verified_step{{[^}}]*run="{run}"')


def watch(node: Node, folder: Path, user: int, capabilities: Iterable[str] | None) -> Seen:
    """What an agent of this user shows, with these capabilities or, by None, with all that root has.

    folder: an empty one of this user.
    """
    run_as(BOB, node.boxes, _ENDED_LONG_AGO)
    evidence = owned(folder / "evidence", user, 0o700)
    environ = {"PATH": PROGRAMS, **node.driver.environ}
    prefix = () if capabilities is None else as_user(user, capabilities)
    with agent_process(folder, *_flags(node, evidence), environ=environ, prefix=prefix) as agent:
        until(lambda: _settled(agent.page(), evidence), "the agent has tried everything")
        page = agent.page()
        _, log = agent.stop()
    return Seen(page, evidence, log, not (node.boxes / "ended").exists())


def _flags(node: Node, evidence: Path) -> Iterator[str]:
    yield from ("--directory", str(node.boxes), "--evidence-directory", str(evidence))
    yield from ("--sysfs", str(node.tree.sysfs), "--kubelet-socket", str(node.kubelet_socket))
    yield from ("--checkpoint-paths", str(node.closed), "--checkpoint-bytes-per-second", "1e9")
    yield from ("--intervals-seconds", ",".join(f"{each}=0.3" for each in COLLECTORS))
    yield from ("--retention-seconds", str(time.monotonic() - _ENDED_AT - 5.0))


def _settled(page: str, evidence: Path) -> bool:
    """True once each part has tried what it can: all of them serve the runs of all users in turn."""
    pulls = re.findall(r"^rankwatch_flight_recorder_pulls_total{.*} (.*)", page, re.MULTILINE)
    return (
        all(any(evidence.glob(f"*-{run}-*/manifest.json")) for run in ("open", "private"))
        and re.search(r"^rankwatch_checkpoint_verifications_pending{.*} 0.0$", page, re.MULTILINE) is not None
        and sum(map(float, pulls)) >= 3.0 * len(USERS)
    )


__all__ = ["node_directory"]

pytestmark = pytest.mark.process

SHOWS, SAYS = "## What each privilege shows", "| what is missing | what says so |"
_PAGE = (ROOT / "docs" / "security.md").read_text()


class Rights(NamedTuple):
    """Of an agent. capabilities: None for all that root has."""

    user: int
    capabilities: tuple[str, ...] | None


GRANTED = {each.stem: tuple(directives(each)["AmbientCapabilities"][0].split()) for each in DROP_INS}
"""Drop-in of the unit -> its capabilities."""
TIERS = {
    "own user": Rights(AGENT, ()),
    **{f"`{name}`": Rights(AGENT, capabilities) for name, capabilities in GRANTED.items()},
    "all of them": Rights(AGENT, tuple({each for some in GRANTED.values() for each in some})),
    "root without capabilities": Rights(0, ()),
    "root": Rights(0, None),
}
"""The columns of the table."""


def rows(beginning: str) -> Iterator[list[str]]:
    """The cells of the first table from here on, row by row, without the line below its head."""
    lines = _PAGE[_PAGE.index(beginning) :].splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("| "))
    for at, line in enumerate(lines[first:]):
        if not line.startswith("| "):
            return
        if at != 1:
            yield [cell.strip() for cell in line.strip("|").split("|")]


def shown(tier: str) -> Mapping[str, bool]:
    """A column: what is shown, and whether the table says that this tier shows it."""
    head, *body = rows(SHOWS)
    return {cells[0]: cells[head.index(tier)] == "yes" for cells in body}


def kernel_log_is_closed() -> bool:
    """True where reading the kernel log takes CAP_SYSLOG, and this machine has one."""
    restricted = Path("/proc/sys/kernel/dmesg_restrict")
    return restricted.exists() and restricted.read_text().strip() == "1" and os.access("/dev/kmsg", os.R_OK)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    if os.geteuid() != 0:
        pytest.skip("only root can be other users")
    missing = [each for each in ("setpriv", "unshare", "py-spy") if not shutil.which(each, path=PROGRAMS)]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")
    with shared_node() as running:
        yield running


def test_table_names_everything() -> None:
    """Each tier that can be chosen has a column, and each feature that the tests look for a row."""
    head, *body = rows(SHOWS)
    assert head[1:] == list(TIERS)
    assert [cells[0] for cells in body] == list(FEATURES)
    assert {cell for cells in body for cell in cells[1:]} == {"yes", ""}


@pytest.mark.parametrize("tier", TIERS)
def test_tier(tier: str, node: Node) -> None:
    """An agent shows what the table promises for its rights, and no more; what it lacks it says."""
    rights = TIERS[tier]
    name = tier.strip("`").replace(" ", "-")
    seen = watch(node, owned(node.folder / name, rights.user, 0o700), *rights)
    promised, found = dict(shown(tier)), {each: shows(seen) for each, shows in FEATURES.items()}
    if not kernel_log_is_closed():
        del promised[KERNEL_LOG], found[KERNEL_LOG]
    assert found == promised
    if tier == "own user":
        assert_says_what_is_missing(seen, promised)


def assert_says_what_is_missing(seen: Seen, promised: Mapping[str, bool]) -> None:
    _, *body = rows(SAYS)
    says = {missing: text.split("`")[1::2] for missing, text in body}
    assert {each for each, there in promised.items() if not there} <= says.keys()
    for missing in says.keys() & promised.keys():
        for part in says[missing]:
            assert part in seen.text, f"{missing}: {part}"


@pytest.mark.parametrize(
    ("drop_in", "switch"), [("black-boxes", "blackBoxes"), ("user-files", "userFiles"), ("stacks", "stacks")]
)
def test_unit_and_chart_grant_the_same(drop_in: str, switch: str) -> None:
    """A tier has the same capabilities under systemd and in Kubernetes, so one table holds for both."""
    added = container({"privileges": {switch: True}})["securityContext"]["capabilities"]["add"]
    assert [f"CAP_{each}" for each in added] == list(GRANTED[drop_in])


def test_note_of_a_kill(node_directory: Path) -> None:
    """It takes `black-boxes` to leave the kernel's line beside a box, as a file of the box's user: no other
    file there counts."""
    run_as(ALICE, node_directory, "box('job', 0)")
    box = node_directory / "job" / "0.blackbox"
    code = "import sys, pathlib; from rankwatch_agent.training.life.ends import write_kill as write\n"
    code += "write(pathlib.Path(sys.argv[1]), int(sys.argv[2]), 'Out of memory: Killed process 7')"
    rights = as_user(AGENT, GRANTED["black-boxes"])
    subprocess.run([*rights, sys.executable, "-c", code, str(box), str(ALICE)], check=True)
    (note,) = box.parent.glob("*.killed")
    assert note.lstat().st_uid == ALICE
    assert {each.name for each in box.parent.iterdir()} == {box.name, note.name}
