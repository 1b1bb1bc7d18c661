"""The SLURM collector, job maps and environments of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.gpu.inventory import GpuIdentity, GpuInventory
from rankwatch_agent.sources.kernel_files import MAX_FILE_BYTES
from rankwatch_agent.sources.slurm import (
    GpuFile,
    SlurmCollector,
    gpu_files,
    job_of_process,
    parse_environment,
    parse_jobs,
    read_jobs,
)
from support.agent.process import values

FIRST = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab"
SECOND = "GPU-22222222-aaaa-bbbb-cccc-0123456789ab"
SLICE = "MIG-33333333-aaaa-bbbb-cccc-0123456789ab"
UNMATCHED = ("rankwatch_gpu_allocations_unmatched", "slurm")
FAILURES = ("rankwatch_attribution_failures_total", "slurm")


class Node:
    """A node with two GPUs, the second cut into MIG instances."""

    def __init__(self, root: Path) -> None:
        self.jobs = root / "jobs"
        self.procfs = root / "proc"
        self.procfs.mkdir()
        self.inventory = GpuInventory()
        self.run_on()

    def run_on(self, *, first: tuple[int, ...] = (), second: tuple[int, ...] = ()) -> None:
        """The processes NVML shows."""
        self.inventory.publish(
            [
                GpuIdentity(FIRST, "0000:3b:00.0", 0, 0, "H100", pids=first),
                GpuIdentity(SECOND, "0000:5e:00.0", 1, 1, "H100", (SLICE,), second),
            ],
            [("rankwatch_gpu_mig_info", (SECOND, SLICE, "1g.10gb", "7", "0"))],
        )

    def give(self, **files: str) -> None:
        """Write files of the job map; `g1_7` is 1.7."""
        self.jobs.mkdir(exist_ok=True)
        for name, text in files.items():
            (self.jobs / name.removeprefix("g").replace("_", ".")).write_text(text)

    def process(self, pid: int, environment: bytes) -> None:
        """A process with this environment."""
        (self.procfs / str(pid)).mkdir()
        (self.procfs / str(pid) / "environ").write_bytes(environment)

    def collector(self, *, mapped: bool = True) -> SlurmCollector:
        return SlurmCollector(
            job_map=self.jobs if mapped else None,
            procfs=self.procfs,
            inventory=self.inventory,
            schedule=Schedule(30.0, 10.0),
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def shown(
    *owners: tuple[str, str, str], unmatched: int = 0, failures: int = 0
) -> dict[tuple[str, ...], float]:
    """All series, for these owners: GPU, MIG instance and job."""
    jobs = {("rankwatch_gpu_slurm_info", *each): 1.0 for each in owners}
    return {**jobs, UNMATCHED: unmatched, FAILURES: failures}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"g0": "4711\n\n 4712_3 \n4711\n", "g1": "", "g1_7": "4713+1\n"},
            shown((FIRST, "", "4711"), (FIRST, "", "4712_3"), (SECOND, SLICE, "4713+1")),
        ),
        (
            {"g0": "4711\n", "g7": "4712\n4713\n", "g8": "", "notes": "4714\n"},
            shown((FIRST, "", "4711"), unmatched=1),
        ),
    ],
    ids=[
        "jobs and an array on a shared GPU, an idle GPU, a heterogeneous job on an instance",
        "file of an unknown GPU that names jobs",
    ],
)
def test_job_map(node: Node, files: dict[str, str], expected: dict[tuple[str, ...], float]) -> None:
    """The jobs of each GPU. The first job's prolog creates the map."""
    slurm = node.collector()
    assert values([slurm.collect()]) == shown()
    node.give(**files)
    assert values([slurm.collect()]) == expected


def test_unusable_file(node: Node) -> None:
    """It counts as a failure at each attempt, and the other files are read."""
    node.give(g0="4711\n", g1="what is this\n")
    (node.jobs / "1.7").mkdir()
    slurm = node.collector()
    slurm.collect()
    assert values([slurm.collect()]) == shown((FIRST, "", "4711"), failures=4)


def test_unreadable_job_map(node: Node) -> None:
    """The next run that succeeds shows the count."""
    slurm = node.collector()
    node.jobs.write_text("")
    with pytest.raises(CollectError, match="Not a directory"):
        slurm.collect()
    node.jobs.unlink()
    assert values([slurm.collect()]) == shown(failures=1)


def test_jobs_of_processes(node: Node) -> None:
    """Each job once per GPU. Processes of other sessions belong to none."""
    for pid, environment in enumerate(
        ("SLURM_JOB_ID=4711", "SLURM_JOB_ID=4711", "PATH=/bin", "SLURM_JOB_ID=4712")
    ):
        node.process(100 + pid, f"{environment}\0".encode())
    node.run_on(first=(100, 101, 102, 999), second=(100, 103))
    assert values([node.collector(mapped=False).collect()]) == shown(
        (FIRST, "", "4711"), (SECOND, "", "4711"), (SECOND, "", "4712")
    )


def test_job_map_wins_over_processes(node: Node) -> None:
    """The map knows the MIG instance."""
    node.give(g1_7="4711\n")
    node.process(100, b"SLURM_JOB_ID=4711\0")
    node.run_on(second=(100,))
    assert values([node.collector().collect()]) == shown((SECOND, SLICE, "4711"))


def test_unreadable_environment(node: Node) -> None:
    """An agent without permission still shows how much it does not know."""
    node.process(100, b"SLURM_JOB_ID=4711\0")
    (node.procfs / "101").mkdir()
    # Stands for a file that may not be read, also where the test runs as root.
    (node.procfs / "101" / "environ").symlink_to("environ")
    node.run_on(first=(100, 101))
    assert values([node.collector(mapped=False).collect()]) == shown((FIRST, "", "4711"), unmatched=1)


def test_neither_map_nor_job(node: Node) -> None:
    """A Kubernetes node or a workstation."""
    node.process(100, b"PATH=/bin\0")
    node.run_on(first=(100,))
    with pytest.raises(NotApplicable):
        node.collector(mapped=False).collect()


def test_idle_after_a_job(node: Node) -> None:
    """The collector stays applicable between jobs."""
    node.process(100, b"SLURM_JOB_ID=4711\0")
    node.run_on(first=(100,))
    slurm = node.collector(mapped=False)
    slurm.collect()
    node.run_on()
    assert values([slurm.collect()]) == shown()


@pytest.mark.process
def test_job_of_a_real_process() -> None:
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4711"}
    command = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert job_of_process(Path("/proc"), process.pid) == "4711"
        process.kill()
        process.wait()
        assert job_of_process(Path("/proc"), process.pid) is None


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ("", None),
        ("PATH=/bin\0SLURM_JOB_ID=7\0", "7"),
        ("SLURM_JOB_ID=7_2\0SLURM_JOB_ID=8", "7_2"),
        ("MY_SLURM_JOB_ID=7\0SLURM_JOB_ID_OLD=7\0", None),
        ("SLURM_JOB_ID=\0", None),
        ("SLURM_JOB_ID=\ufffd\ufffd\0", None),
        ("SLURM_JOB_ID=two words\0", None),
        ("SLURM_JOB_ID=" + "7" * 65, None),
    ],
)
def test_parse_environment(environment: str, job: str | None) -> None:
    """Any user can set the variable."""
    assert parse_environment(environment) == job


def test_environment_over_the_limit(tmp_path: Path) -> None:
    """A process decides how large its own is."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "environ").write_bytes(b"A" * MAX_FILE_BYTES + b"\0SLURM_JOB_ID=7\0")
    with pytest.raises(CollectError, match="more than"):
        job_of_process(tmp_path, 1)


def test_names_of_files(tmp_path: Path) -> None:
    """A number is a GPU, two numbers are an instance of it. Other files are ignored."""
    for name in ("0", "12", "2.1", "README", "1.", ".1", "-1", "2.1.3", "٣", "1\n", "99999"):
        (tmp_path / name).write_text("")
    expected = [("0", 0, None), ("12", 12, None), ("2.1", 2, 1)]
    assert gpu_files(tmp_path) == [GpuFile(tmp_path / name, *numbers) for name, *numbers in expected]


def test_number_of_files_is_bounded(tmp_path: Path) -> None:
    """A wrong setting could lead to /proc."""
    for number in range(1025):
        (tmp_path / str(number)).touch()
    with pytest.raises(CollectError, match="more than 1024 files"):
        gpu_files(tmp_path)


@pytest.mark.parametrize(
    "text", ["two words\n", "x" * 65, 'a"b', "\x00", "é", "\n".join(map(str, range(300)))]
)
def test_invalid_job_ids(text: str) -> None:
    """Each would become the value of a label."""
    with pytest.raises(ValueError):
        parse_jobs(text)


def test_fifo_directory_or_huge_file(tmp_path: Path) -> None:
    """None of them may block the agent or fill its memory."""
    os.mkfifo(tmp_path / "0")
    (tmp_path / "1").mkdir()
    (tmp_path / "2").write_text("1\n" * MAX_FILE_BYTES)
    for name, reason in (("0", "it is a FIFO"), ("1", "Is a directory"), ("2", "it has more than")):
        with pytest.raises(CollectError, match=f"/{name}: {reason}"):
            read_jobs(tmp_path / name)
    assert read_jobs(tmp_path / "3") == []
