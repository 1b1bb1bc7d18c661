"""File systems of training processes, and counters of NFS."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import NotApplicable
from rankwatch_agent.runtime.writers import RankProcess
from rankwatch_agent.sources import mounts
from rankwatch_agent.sources.mounts import (
    MAX_MOUNTS,
    MountsCollector,
    data_mounts,
    parse_mountinfo,
    parse_mountstats,
)
from support.agent.process import until, values

NODE = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 0:5 / /dev rw - devtmpfs devtmpfs rw
25 24 0:26 / /dev/shm rw - tmpfs tmpfs rw
26 22 0:27 / /run rw - tmpfs tmpfs rw
32 25 0:28 / /dev/shm rw - tmpfs shm rw
27 22 0:51 / /mnt/check\\040points rw - nfs4 fs01:/check\\040points rw,vers=4.2
28 22 0:52 / /data rw - lustre 10.0.0.1@o2ib:/scratch rw
29 22 259:5 / /local rw - xfs /dev/nvme1n1 rw
30 22 259:1 /etc/hosts /etc/hosts rw - ext4 /dev/nvme0n1p1 rw
31 22 259:5 /run7 /scratch/me/run7 rw - xfs /dev/nvme1n1 rw
a broken line
"""
STATS = """\
device /dev/nvme0n1p1 mounted on / with fstype ext4
device fs01:/check\\040points mounted on /mnt/check\\040points with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,timeo=600
\tage:\t3600
\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0
\tbytes:\t100 200 0 0 1207640230 4000 295483 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 1298 1300 1 207680 1210292152 6 79386 79407 0
\t       WRITE: 10 10 0 4000 900 1 500 1500 0
\t        OPEN: 77 77 0 1 1 0 1 77 0
\t     GETATTR: 3 3 0 1 1 0 1 2 0
\tTEST_STATEID: 2 3 1 1 1 0 1 4 0
device fs02:/broken mounted on /broken with fstype nfs statvers=1.1
\tbytes:\tno numbers
"""


def test_data_mounts() -> None:
    """The file system of the working directory first, then network file systems; each device once."""
    mounts = data_mounts(parse_mountinfo(NODE), "/scratch/me/run7/logs")
    assert [each.path for each in mounts] == [
        "/scratch/me/run7",
        "/",
        "/data",
        "/mnt/check points",
        "/dev/shm",
    ]
    assert [each.type for each in mounts] == ["xfs", "ext4", "lustre", "nfs4", "tmpfs"]
    assert mounts[-1].source == "shm"  # the other tmpfs lies below it, and nobody reaches it


def test_many_mounts() -> None:
    lines = (f"{each} 1 0:{each} / /m{each} rw - nfs4 s:/e{each} rw\n" for each in range(100, 200))
    assert len(data_mounts(parse_mountinfo("".join(lines)), "")) == MAX_MOUNTS


class Node:
    """A process with a mount table, and file systems that answer or hang."""

    def __init__(self, root: Path) -> None:
        self.procfs = root
        self.hangs: set[str] = set()
        self.dead: set[str] = set()
        self.asked: list[str] = []
        self.release = threading.Event()
        self.ranks = [RankProcess("gpt", 3, 70), RankProcess("gpt", 4, 71)]
        number = root.stat().st_dev
        self.device = f"{os.major(number)}:{os.minor(number)}"
        self.collector = MountsCollector(
            procfs=root,
            rootfs=root,
            ranks=lambda: self.ranks,
            schedule=Schedule(15, 10),
            statvfs=self._statvfs,
            answer_seconds=0.3,
        )

    def mount(self, *paths: str) -> None:
        """Mounts of one device each; only the first has the number of a real one."""
        process = self.procfs / "70"
        table = ""
        for at, path in enumerate(paths):
            (process / "root" / path[1:]).mkdir(parents=True, exist_ok=True)
            table += f"{at} 1 {f'9:{at}' if at else self.device} / {path} rw - ext4 /dev/sd{at} rw\n"
        (process / "mountinfo").write_text(table)

    def _statvfs(self, path: str) -> os.statvfs_result:
        self.asked.append(path)
        if any(path.endswith(each) for each in self.hangs):
            self.release.wait()
        if any(path.endswith(each) for each in self.dead):
            raise OSError(errno.ESTALE, "Stale file handle")
        return os.statvfs(path)

    def read(self) -> dict[tuple[str, ...], float]:
        return values([self.collector.collect()])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.release.set()


def test_space(node: Node) -> None:
    """One of the run's ranks is enough. A mount that the agent cannot reach has a name and no numbers."""
    node.mount("/ckpt", "/elsewhere")
    found, space = node.read(), os.statvfs(node.procfs)
    assert found.pop(("rankwatch_run_mount_available_bytes", "gpt", "/ckpt")) > 0
    assert found == {
        ("rankwatch_run_mount_info", "gpt", "/ckpt", "/dev/sd0", "ext4"): 1,
        ("rankwatch_run_mount_size_bytes", "gpt", "/ckpt"): space.f_blocks * space.f_frsize,
        ("rankwatch_run_mount_read_only", "gpt", "/ckpt"): 0,
        ("rankwatch_run_mount_responding", "gpt", "/ckpt"): 1,
        ("rankwatch_run_mount_info", "gpt", "/elsewhere", "/dev/sd1", "ext4"): 1,
    }


def test_dead_file_server(node: Node) -> None:
    """It is named, costs one thread however often it is asked, and is back once it answers for the mount."""
    node.mount("/ckpt")
    node.hangs.add("/ckpt")
    for _ in range(3):
        found = node.read()
        assert found["rankwatch_run_mount_responding", "gpt", "/ckpt"] == 0
        assert ("rankwatch_run_mount_size_bytes", "gpt", "/ckpt") not in found
    assert len(node.asked) == 1
    node.hangs.clear()
    node.release.set()
    responding = ("rankwatch_run_mount_responding", "gpt", "/ckpt")
    until(lambda: node.read()[responding] == 1, "the file system answers")
    node.dead.add("/ckpt")  # the server answers, but no longer for this mount
    assert node.read()[responding] == 0


def test_nothing_to_read(node: Node) -> None:
    node.ranks = []
    with pytest.raises(NotApplicable):
        node.collector.collect()


def test_nfs(node: Node) -> None:
    """The host's process and the rank see the same mount, which has one set of counters."""
    node.mount("/ckpt")
    (node.procfs / "1").mkdir()
    for process in ("1", "70"):
        (node.procfs / process / "mountstats").write_text(STATS)
    labels = ("/mnt/check points", "fs01:/check points")
    found = {key: value for key, value in node.read().items() if "nfs" in key[0]}
    operations = {"read": 1298, "write": 10, "open": 77, "getattr": 3, "other": 3}
    seconds = {"read": 79.407, "write": 1.5, "open": 0.077, "getattr": 0.002, "other": 0.004}
    assert found == pytest.approx(
        {
            ("rankwatch_nfs_read_bytes_total", *labels): 1207640230,
            ("rankwatch_nfs_write_bytes_total", *labels): 4000,
            ("rankwatch_nfs_retransmissions_total", *labels): 3,
            ("rankwatch_nfs_timeouts_total", *labels): 2,
            **{("rankwatch_nfs_operations_total", *labels, name): n for name, n in operations.items()},
            **{("rankwatch_nfs_operation_seconds_total", *labels, name): n for name, n in seconds.items()},
        }
    )


@pytest.mark.parametrize("text", ["", "device", "device a:/b mounted on /c with fstype nfs4 \n\tbytes: 1\n"])
def test_broken_mountstats(text: str) -> None:
    assert list(parse_mountstats(text)) == []


@pytest.mark.process
def test_mount_namespace_of_a_container(tmp_path: Path) -> None:
    """The process sees another /tmp than the host. Its own is the one that it can fill."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("only root makes a mount namespace")
    script = "mount -t tmpfs -o size=1m,nr_inodes=64 none /tmp && cd /tmp && echo ready && exec sleep 600"
    process = subprocess.Popen([unshare, "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            pytest.skip("mounting is not allowed here")
        collector = MountsCollector(
            procfs=Path("/proc"),
            rootfs=Path("/"),
            ranks=lambda: [RankProcess("gpt", 0, process.pid)],
            schedule=Schedule(15, 10),
        )
        found = values([collector.collect()])
    finally:
        process.kill()
        process.communicate()
    assert found["rankwatch_run_mount_size_bytes", "gpt", "/tmp"] == 1 << 20
    assert found["rankwatch_run_mount_info", "gpt", "/tmp", "none", "tmpfs"] == 1


def test_many_runs_of_one_user(node: Node) -> None:
    """They do not push out the run of another one."""
    node.mount("/data")
    node.ranks = [*(RankProcess(f"hog{each}", 0, 71, 1) for each in range(100)), RankProcess("gpt", 3, 70, 2)]
    assert any(key[:2] == ("rankwatch_run_mount_info", "gpt") for key in node.read())


def test_mounts_without_end(node: Node) -> None:
    """Only the first thousands of a mount table are read: users can make more in a namespace of their own."""
    node.mount("/data")
    table = node.procfs / "70" / "mountinfo"
    many = "1 1 9:9 / /x rw - ext4 /dev/sdx rw\n" * 50_000
    table.write_text(f"{table.read_text()}{many}1 1 9:8 / /late rw - ext4 /dev/sdy rw\n")
    node.ranks = node.ranks[:1]
    places = {key[2] for key in node.read() if key[0] == "rankwatch_run_mount_info"}
    assert places == {"/data", "/x"}


@pytest.mark.process
def test_agent_of_another_user(tmp_path: Path) -> None:
    """It may not enter the rank's namespace, nor read the counters of NFS. That is no failure."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    code = f"""
import os
from pathlib import Path
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.writers import RankProcess
from rankwatch_agent.sources.mounts import MountsCollector
os.setgid(65534); os.setuid(65534)
ranks = lambda: [RankProcess("gpt", 0, {os.getpid()})]
mounts = MountsCollector(procfs=Path("/proc"), rootfs=Path("/"), ranks=ranks, schedule=Schedule(15, 10))
print(sorted(each.metric.name for each in mounts.collect().series))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rankwatch_run_mount_size_bytes" in done.stdout


def test_file_systems_that_never_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one user leave places in which that of another one is asked."""
    release = threading.Event()

    def run(question: mounts._Probe) -> None:
        if question.place.owner == 1:
            release.wait()
        question.answer = mounts.FileSystemState(True, None)

    monkeypatch.setattr(mounts._Probe, "run", run)
    prober = mounts.FileSystemProber(os.statvfs, 0.1)
    dead = {f"9:{each}": mounts.Place((), 1) for each in range(100)}
    try:
        assert len(prober.probe(dead)) == mounts.MAX_PROBES_OF_USER
        answers = prober.probe(dead | {"8:1": mounts.Place((), 2)})
        assert answers["8:1"].responding
        assert len(answers) == mounts.MAX_PROBES_OF_USER + 1
    finally:
        release.set()
