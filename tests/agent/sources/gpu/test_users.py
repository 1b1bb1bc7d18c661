"""Whose processes are on which GPU."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.sources.gpu.inventory import GpuIdentity, gpu_users


def gpu(*pids: int, migs: tuple[str, ...] = ()) -> GpuIdentity:
    return GpuIdentity("GPU-0", "0000:1b:00.0", 0, 0, "NVIDIA L4", migs, pids)


def process(procfs: Path, pid: int, user: int, name: str = "python3") -> None:
    (procfs / str(pid)).mkdir()
    status = f"Name:\t{name}\nUmask:\t0022\nUid:\t{user}\t0\t0\t0\nGid:\t7\t7\t7\t7\n"
    (procfs / str(pid) / "status").write_text(status)


def test_users(tmp_path: Path) -> None:
    """All users of the processes that live, for the GPU and for each of its MIG instances."""
    process(tmp_path, 7, 1001)
    process(tmp_path, 8, 1002)
    both = frozenset((1001, 1002))
    assert gpu_users([gpu(7, 8, 9)], tmp_path) == {"GPU-0": both}
    assert gpu_users([gpu(8, 7, migs=("MIG-a",))], tmp_path) == {"GPU-0": both, "MIG-a": both}


def test_unknown(tmp_path: Path) -> None:
    """Nothing is said of a GPU without processes, or whose processes have ended."""
    process(tmp_path, 7, 1001)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "status").write_bytes(b"Name:\tx\nUid:\t\xff\n")
    assert gpu_users([gpu(), gpu(8), gpu(9)], tmp_path) == {}


def test_multi_process_service(tmp_path: Path) -> None:
    """Its server computes for the processes of all users."""
    process(tmp_path, 7, 0, "nvidia-cuda-mps-server"[:15])
    process(tmp_path, 8, 1001)
    assert gpu_users([gpu(7, 8)], tmp_path) == {}
