"""What kernel, launchers and ranks tell of processes, in words that users choose: names, paths, variables."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rankwatch.checkpoint_paths import parse_checkpoints
from rankwatch.conventions.vocabulary import CHECKPOINT_OPERATIONS
from rankwatch.trackers.finding import parse_note
from rankwatch.untrusted.text import last_argument, message_of, redacted, redacted_place, spreadsheet_cell
from rankwatch_agent.runtime.collector import Schedule
from rankwatch_agent.runtime.node_events import RestartCycles
from rankwatch_agent.sources.gpu.inventory import GpuInventory
from rankwatch_agent.sources.kernel_log import KernelLogCollector
from rankwatch_agent.sources.mounts import data_mounts, parse_mountinfo, parse_mountstats
from rankwatch_agent.sources.nvrx import NvrxCollector
from rankwatch_agent.sources.process_table import read_processes
from rankwatch_agent.sources.rank_process import read_facts
from rankwatch_agent.sources.slurm import parse_environment, parse_jobs
from rankwatch_agent.sources.xid import XidCounter, load_table

from ..reader import Document, Reader, parsing, single

_SCHEDULE = Schedule(15.0, 10.0)
_KERNEL_LINES = (
    "NVRM: GPU at PCI:0000:3b:00: GPU-8f1c8f1c-0000-1111-2222-333344445555",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0 0 0 0)",
    "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job,mems_allowed=0,oom_memcg=/slurm/job_7,"
    "task_memcg=/slurm/job_7/step_0,task=python,pid=77,uid=1000",
    "Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:9kB",
    "INFO: task python:1234 blocked for more than 120 seconds.",
    "nfs: server 10.0.0.7 not responding, still trying",
    "EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455: inode #2",
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, Bus stuck",
)
_MOUNTS = """22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw
25 24 0:26 / /dev/shm rw - tmpfs tmpfs rw
27 22 0:51 / /mnt/check\\040points rw - nfs4 fs01:/check\\040points rw,vers=4.2
28 22 0:52 / /data rw - lustre 10.0.0.1@o2ib:/scratch rw
"""
_MOUNT_STATISTICS = """device fs01:/ck\\040p mounted on /mnt/ck with fstype nfs4 statvers=1.1
\tbytes:\t100 200 0 0 1207640230 4000 295483 0
\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726
\t        READ: 1298 1300 1 207680 1210292152 6 79386 79407 0
\t       WRITE: 10 10 0 4000 900 1 500 1500 0
"""
_STAT = "77 (a) b (c) D 1 77 77 0 -1 4194304 1 0 0 0 5 3 0 0 20 0 2 0 4550 1000 20 18446744073709551615\n"


def _process_files() -> Document:
    files = {
        "77/stat": _STAT,
        "77/task/77/stat": _STAT,
        "77/task/78/stat": _STAT.replace(" D ", " S "),
        "77/task/77/status": "Name:\tp\nvoluntary_ctxt_switches:\t9\nnonvoluntary_ctxt_switches:\t8\n",
        "77/task/77/wchan": "rpc_wait_bit_killable",
        "77/schedstat": "90000000 800000 77\n",
        "77/environ": "PATH=/bin\0SLURM_JOB_ID=8_3\0RANK=0\0",
        "77/mountinfo": _MOUNTS,
        "77/mountstats": _MOUNT_STATISTICS,
        "uptime": "100000.0 1.0\n",
    }
    return Document(files={name: text.encode() for name, text in files.items()})


def _read_process(folder: Path) -> None:
    list(read_processes(folder))
    facts = read_facts(folder, 77)
    assert facts is None or json.dumps(facts.as_json())
    process = folder / "77"
    parse_environment((process / "environ").read_text(errors="replace"))
    data_mounts(parse_mountinfo((process / "mountinfo").read_text(errors="replace")), "/data/me")
    list(parse_mountstats((process / "mountstats").read_text(errors="replace")))


def _kernel_log() -> Document:
    lines = (f"6,{number},{9000000 + number},-;{text}\n" for number, text in enumerate(_KERNEL_LINES))
    return Document(files={"kmsg": "".join(lines).encode(), "stat": b"cpu 1\nbtime 1760000000\n"})


def _read_kernel_log(folder: Path) -> None:
    inventory, xids = GpuInventory(), XidCounter(load_table(None))
    KernelLogCollector(
        path=folder / "kmsg", procfs=folder, inventory=inventory, xids=xids, schedule=_SCHEDULE
    ).collect()


def _cycles() -> Document:
    cycle = {
        "job_id": "70",
        "attempt_index": 0,
        "cycle_number": 2,
        "cycle_start_time": "2026-11-23T06:00:00.250000Z",
        "cycle_end_time": "2026-11-23T06:10:00Z",
        "active_nodes": "node[01-04,9],rack[1-2]n[7-8]",
        "standby_nodes": "spare1",
    }
    return Document(files={"cycle_info.70.0.2": json.dumps(cycle, indent=2).encode()})


def _read_cycles(folder: Path) -> None:
    cycles = RestartCycles()
    cycles.wanted = frozenset({("70", os.getuid())})
    NvrxCollector(directory=folder, cycles=cycles, schedule=_SCHEDULE).collect()


def _noted() -> bytes:
    entry = {"step": 5, "path": "/ck/step-5", "ended": 1.79e9, "failed": True, "error": "OSError: full"}
    return json.dumps(
        {"checkpoints": [{"operation": each, **entry} for each in CHECKPOINT_OPERATIONS]}
    ).encode()


def _trackers() -> bytes:
    tracker = {"kind": "mlflow", "run": "a1", "url": "https://t/#/e/1/runs/a1", "endpoint": "https://t:5000"}
    return json.dumps({"trackers": [tracker, {**tracker, "kind": "wandb", "endpoint": ""}]}).encode()


_TEXTS = (
    "OSError: could not save to https://me:secret@store:443/ck?X-Amz-Signature=0123456789abcdef&x=1: 403",
    "RuntimeError: api_key = 'abc', Authorization: Bearer abcdef0123456789abcdef, token=\"x y z\"",
    "s3://bucket/path/step-5, abfss://container@account/x; mailto:a@b.c {user:password@host:22}",
)


def _read_text(data: bytes) -> None:
    """Everything that is done to a text before it is shown or kept."""
    text = data.decode("utf-8", "replace")
    assert message_of(text).isprintable()
    for change in (redacted, redacted_place, spreadsheet_cell, last_argument):
        change(text)


READERS = (
    Reader(
        "texts of exceptions",
        lambda _: single(*(each.encode() for each in _TEXTS)),
        parsing(_read_text),
        share=4,
    ),
    Reader("note of checkpoints", lambda _: single(_noted()), parsing(parse_checkpoints), share=4),
    Reader("note of trackers", lambda _: single(_trackers()), parsing(parse_note), share=4),
    Reader("cycles of NVRx", lambda _: [_cycles()], _read_cycles, share=4),
    Reader("lines of the kernel", lambda _: [_kernel_log()], _read_kernel_log, share=4),
    Reader("/proc of a process", lambda _: [_process_files()], _read_process, share=4),
    Reader(
        "SLURM's job map",
        lambda _: single(b"8_3\n8+1\njob.17@cluster\n"),
        parsing(lambda data: parse_jobs(data.decode("utf-8", "replace"))),
        (ValueError,),
        share=2,
    ),
)
