"""A machine with one GPU: the jobs on it, the agent beside them, and who is asked about both."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).parent / "jobs" / "ranks.py"
RANKWATCH = (sys.executable, "-m", "rankwatch_cli")
DEFAULT_CYCLES = 1.7e6
GRACE_SECONDS = 12.0
"""Of a part's limit, for what it does after its ranks have ended."""
HANDLERS = ("dump_nccl_trace_json", "dump_nccl_trace_pickle", "fr_trace_json")


@dataclass
class Context:
    """Where a part works, and until when."""

    raw: Path
    """Its folder: everything in it is kept."""
    rehearse: bool = False
    limit: float = 60.0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.raw.mkdir(parents=True, exist_ok=True)
        self.boxes = self.raw / "boxes"
        self.boxes.mkdir(exist_ok=True)
        self.ras_port = free_port()

    @property
    def left(self) -> float:
        """Seconds until the ranks must have ended."""
        return self.limit - GRACE_SECONDS - (time.monotonic() - self.began)

    @property
    def device(self) -> str:
        return "cpu" if self.rehearse else "cuda"

    def note(self, text: str) -> None:
        """Something found that stays in the result even if the part is cut off."""
        self.notes.append(text)
        print(text, flush=True)
        with (self.raw / "notes.txt").open("a") as file:
            file.write(text + "\n")

    def cycles(self) -> float:
        """Cycles of a millisecond, as part `versions` has measured them."""
        kept = self.raw.parent / "versions" / "calibrate" / "calibrate.0.json"
        return float(json.loads(kept.read_text())["cycles_per_ms"]) if kept.exists() else DEFAULT_CYCLES

    def until(self, ready: Callable[[], Any], seconds: float) -> Any:
        """Polls until something is true; returns it, or what it was at the end."""
        ends = time.monotonic() + max(0.0, min(seconds, self.left + GRACE_SECONDS / 2))
        while not (found := ready()) and time.monotonic() < ends:
            time.sleep(0.2)
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Job:
    """The ranks of a job, each started as the only one of its node. Reports and logs are in `folder`."""

    def __init__(
        self,
        context: Context,
        mode: str,
        *arguments: str,
        world: int = 4,
        name: str = "",
        zero_code: bool = False,
        environ: Callable[[int], dict[str, str]] = lambda _: {},
        device: str = "",
    ) -> None:
        self.context, self.mode, self.name = context, mode, name or mode
        self.folder = context.raw / self.name
        self.folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        prefix = [*RANKWATCH, "run", "--no-summary", "--"] if zero_code else []
        self.device = device or context.device
        where = ["--out", str(self.folder), "--device", self.device]
        command = [*prefix, sys.executable, str(RANKS), mode, *where, *arguments]
        self.processes = []
        for rank in range(world):
            own = {**os.environ, **self._environ(rank, world, port), **environ(rank)}
            with (self.folder / f"rank{rank}.log").open("w") as log:
                self.processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))

    def _environ(self, rank: int, world: int, port: int) -> dict[str, str]:
        context = self.context
        return {
            "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
            "NCCL_NET": "Socket", "NCCL_DEBUG": "WARN", "NCCL_RAS_ADDR": f"127.0.0.1:{context.ras_port}",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": str(self.folder / "watchdog_rank_"),
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self.folder / "watchdog_rank_"),
            "TORCHINDUCTOR_CACHE_DIR": str(context.raw.parent / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "RANKWATCH_DIR": str(context.boxes), "RANKWATCH_RUN": self.name, "RANKWATCH_SUMMARY": "0",
            "ACCEPTANCE_CYCLES": str(context.cycles()),
        }  # fmt: skip

    def alive(self) -> bool:
        return any(each.poll() is None for each in self.processes)

    def wait(self, *, expect: Sequence[int] = (0,)) -> list[int | None]:
        """Waits for all ranks until the part's time is up, or for a moment once one has failed."""
        failed_at = None
        while self.alive() and self.context.left > 0:
            if any(each.poll() not in (None, *expect) for each in self.processes):
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > 8.0:
                    break
            time.sleep(0.1)
        return self.stop(expect=expect)

    def stop(self, *, expect: Sequence[int] = (0, -9)) -> list[int | None]:
        """Kills what is left, and prints the logs of ranks that ended as nobody expected."""
        for each in self.processes:
            if each.poll() is None:
                each.kill()
        codes = [each.wait(10) for each in self.processes]
        for rank, code in enumerate(codes):
            if code not in expect:
                text = (self.folder / f"rank{rank}.log").read_text(errors="replace")
                print(f"--- {self.name} rank {rank} ended with {code}:\n{text[-3000:]}", flush=True)
        return codes

    def reports(self) -> dict[int, dict[str, Any]]:
        """What the ranks have written about themselves."""
        found = [json.loads(each.read_text()) for each in self.folder.glob(f"{self.mode}.*.json")]
        return {each["rank"]: each for each in sorted(found, key=lambda each: int(each["rank"]))}

    def run_to_end(self) -> dict[int, dict[str, Any]]:
        """The reports of ranks that all ended well; raises RuntimeError."""
        codes = self.wait()
        if any(codes):
            raise RuntimeError(f"ranks of {self.name} ended with {codes}")
        return self.reports()


class Agent:
    """A running `rankwatch agent`."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, address

    def page(self) -> str:
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def series(self, name: str, **labels: str) -> list[tuple[dict[str, str], float]]:
        """(labels, value) of each series of a metric."""
        return [
            (own, value)
            for own, value in samples(self.page(), name)
            if all(own.get(key) == text for key, text in labels.items())
        ]

    def by_rank(self, name: str, **labels: str) -> dict[int, float]:
        """Sum of a metric by rank."""
        found: dict[int, float] = {}
        for own, value in self.series(name, **labels):
            if own.get("rank", "").isdigit():
                found[int(own["rank"])] = found.get(int(own["rank"]), 0.0) + value
        return dict(sorted(found.items()))

    def has_begun(self, job: Job) -> bool:
        """Whether every rank of a job has done three steps, or one has ended."""
        return sum(done >= 3 for done in self.by_rank("rankwatch_steps_total").values()) == len(
            job.processes
        ) or any(each.poll() is not None for each in job.processes)

    def cpu_seconds(self) -> float:
        """Of the agent and the processes that it has started."""
        ticks, family = 0, {self.process.pid}
        for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda each: int(each.parent.name)):
            with suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(path.parent.name) in family or int(fields[1]) in family:
                    family.add(int(path.parent.name))
                    ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of ended children
        return ticks / os.sysconf("SC_CLK_TCK")


def samples(page: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Series of one metric on a page."""
    for line in page.splitlines():
        if line.startswith((name + "{", name + " ")):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            yield dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value)


@contextmanager
def agent(context: Context, *flags: str, often: bool = True) -> Iterator[Agent]:
    """The agent beside the jobs of a part. Its last page and its log are kept.

    often: it asks recorders, RAS and the GPU more often than by default, because a part is short.
    """
    address = context.raw / "agent.address"
    own = context.raw / "agent"
    own.mkdir(exist_ok=True)
    command = [
        *RANKWATCH, "agent", "--listen", "127.0.0.1:0", "--address-file", str(address),
        "--directory", str(context.boxes), "--state-directory", str(own), "--evidence-directory", "",
        "--nccl-ras-address", f"127.0.0.1:{context.ras_port}",
        *(("--intervals-seconds", "nccl_ras=4,collectives=4,gpu=2,xid=2") if often else ()), *flags,
    ]  # fmt: skip
    with (context.raw / "agent.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        if (
            not context.until(lambda: address.exists() or process.poll() is not None, 25)
            or not address.exists()
        ):
            print((context.raw / "agent.log").read_text()[-3000:])
            raise RuntimeError("the agent does not start")
        running = Agent(process, address.read_text().strip())
        yield running
    finally:
        with suppress(OSError, UnboundLocalError):
            (context.raw / "agent.metrics.txt").write_text(running.page())
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()


def diagnose(context: Context, *arguments: str, name: str = "") -> dict[str, Any]:
    """The JSON of `rankwatch diagnose ...`, kept; the text of an error where there is none."""
    command = [*RANKWATCH, "diagnose", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    (context.raw / f"diagnose.{name or arguments[0]}.json").write_text(done.stdout)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        print(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}", flush=True)
        return {"error": done.stderr[-300:]}


def ask_rank(path: Path, handler: str) -> bytes:
    """The answer of a rank's worker server; raises OSError or http.client.HTTPException."""
    connection = http.client.HTTPConnection("rank", timeout=5)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(5)
    connection.sock.connect(str(path))
    with closing(connection):
        connection.request("POST", f"/handler/{handler}", headers={"Content-Length": "0"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError(f"status {answer.status} of {handler}")
        return body


def pull(context: Context, folder: Path, run: str) -> dict[str, int]:
    """Asks all ranks of a run for every form of their recorders, and keeps them; handler -> answers."""
    paths = sorted((context.boxes / run).glob("*.sock"))
    with ThreadPoolExecutor(max_workers=8) as pool:
        answered = [each for found in pool.map(lambda path: _pull(path, folder), paths) for each in found]
    return {handler: answered.count(handler) for handler in HANDLERS if handler in answered}


def _pull(path: Path, folder: Path) -> list[str]:
    """The handlers that one rank has answered."""
    answered = []
    for handler in HANDLERS:
        with suppress(OSError, http.client.HTTPException):
            body = ask_rank(path, handler)
            kept = folder / f"dumps_{handler}"
            kept.mkdir(parents=True, exist_ok=True)
            (kept / f"rank_{path.stem}").write_bytes(body)
            answered.append(handler)
    return answered


def smi(*arguments: str) -> str:
    """Output of nvidia-smi, empty where there is none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20, check=False)
        return done.stdout
    return ""


def used_mib() -> int:
    """Memory of the GPU in use; 0 without nvidia-smi."""
    found = re.findall(r"\d+", smi("--query-gpu=memory.used", "--format=csv,noheader,nounits"))
    return int(found[0]) if found else 0


def numbers(values: dict[int, float], digits: int = 0) -> str:
    return " ".join(f"{rank}:{value:.{digits}f}" for rank, value in values.items())


def residual(values: dict[int, float], rank: int) -> float:
    """By how much a rank exceeds the median of the others; 0 where it is not known."""
    others = [value for other, value in values.items() if other != rank]
    middle = statistics.median(others) if others else 0.0
    return values.get(rank, 0.0) / middle - 1.0 if middle else 0.0
