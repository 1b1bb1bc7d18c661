"""The parts of the acceptance: a table of names, time limits and expectations, and what each part does."""

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
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).parent / "jobs" / "ranks.py"
RANKWATCH = (sys.executable, "-m", "rankwatch_cli")
SLOW_RANK, SLOW = 2, 1.5
RESIDUAL = (0.35, 0.65)
"""What +50 % of own work may look like."""
DEFAULT_CYCLES = 1.7e6
GRACE_SECONDS = 12.0
"""Of a part's limit, for what it does after its ranks have ended."""
HANDLERS = ("dump_nccl_trace_json", "dump_nccl_trace_pickle", "fr_trace_json")


class Skipped(Exception):
    """The part cannot run here."""


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
    """The ranks of a job, each started as the only one of its node. Their reports and logs are in `folder`."""

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
        where = ["--out", str(self.folder), "--device", device or context.device]
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
            "NCCL_HOSTID": str(rank), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NET": "Socket",
            "NCCL_DEBUG": "WARN", "NCCL_RAS_ADDR": f"127.0.0.1:{context.ras_port}",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_FR_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            "TORCH_FR_DUMP_TEMP_FILE": str(self.folder / "watchdog_rank_"),
            "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(self.folder / "watchdog_rank_"),
            "TORCHINDUCTOR_CACHE_DIR": str(context.raw.parent / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1",
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
def agent(context: Context, *flags: str) -> Iterator[Agent]:
    """The agent beside the jobs of a part. Its last page and its log are kept."""
    address = context.raw / "agent.address"
    own = context.raw / "agent"
    own.mkdir(exist_ok=True)
    command = [
        *RANKWATCH, "agent", "--listen", "127.0.0.1:0", "--address-file", str(address),
        "--directory", str(context.boxes), "--state-directory", str(own), "--evidence-directory", "",
        "--nccl-ras-address", f"127.0.0.1:{context.ras_port}",
        "--intervals-seconds", "nccl_ras=4,collectives=4,gpu=2,xid=2", *flags,
    ]  # fmt: skip
    with (context.raw / "agent.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        if not context.until(lambda: address.exists() or process.poll() is not None, 25) or not address.exists():
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
    connection = http.client.HTTPConnection("rank", timeout=8)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(8)
    connection.sock.connect(str(path))
    with closing(connection):
        connection.request("POST", f"/handler/{handler}", headers={"Content-Length": "0"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise OSError(f"status {answer.status} of {handler}")
        return body


def pull(context: Context, folder: Path, run: str) -> dict[str, int]:
    """Asks all ranks of a run for every form of their recorders; (handler -> answers). Keeps them."""
    counts: dict[str, int] = {}
    for path in sorted((context.boxes / run).glob("*.sock")):
        rank = (re.findall(r"\d+", path.stem) or ["x"])[-1]
        for handler in HANDLERS:
            with suppress(OSError, http.client.HTTPException):
                body = ask_rank(path, handler)
                kept = folder / f"live_{handler}"
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"rank_{rank}").write_bytes(body)
                counts[handler] = counts.get(handler, 0) + 1
    return counts


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


def residual(values: dict[int, float], rank: int = SLOW_RANK) -> float:
    """By how much a rank exceeds the median of the others; 0 where it is not known."""
    others = [value for other, value in values.items() if other != rank]
    middle = statistics.median(others) if others else 0.0
    return values.get(rank, 0.0) / middle - 1.0 if middle else 0.0


def judge_slow_rank(context: Context, job: Job, seen: Agent, run: str = "") -> tuple[bool, str]:
    """Rank 2 is named, its local time stands out as its work does, and no rank works longer than its step."""
    run = run or job.name
    verdict = diagnose(context, "run", str(context.boxes / run), name=f"run.{run}")
    slow = verdict.get("straggler") or {}
    local = seen.by_rank("rankwatch_step_local_seconds_total", run=run)
    step = seen.by_rank("rankwatch_step_seconds_total", run=run)
    steps = {rank: max(1.0, count) for rank, count in seen.by_rank("rankwatch_steps_total", run=run).items()}
    local_ms = {rank: value / steps.get(rank, 1.0) * 1e3 for rank, value in local.items()}
    step_ms = {rank: value / steps.get(rank, 1.0) * 1e3 for rank, value in step.items()}
    over = residual(local_ms)
    named = list(slow.get("ranks") or [])
    inside = all(local[rank] <= step.get(rank, 0.0) * 1.02 for rank in local)
    found = (
        f"{slow.get('cause', verdict.get('error'))} {slow.get('phase')} ranks {named}; "
        f"local ms {numbers(local_ms)} (rank {SLOW_RANK} {over:+.0%}); step ms {numbers(step_ms)}; "
        f"local <= step: {inside}"
    )
    (context.raw / f"agent.{run}.metrics.txt").write_text(seen.page())
    return named == [SLOW_RANK] and RESIDUAL[0] <= over <= RESIDUAL[1] and inside and len(local) == 4, found


def slow_job(context: Context, mode: str, *, live: Callable[[Job, Agent], None] | None = None) -> tuple[bool, str]:
    """Four ranks of which one takes half as long again for its own work."""
    with agent(context) as seen:
        job = Job(context, mode, "--slow-rank", str(SLOW_RANK), "--slow", str(SLOW), "--seconds", "9")
        if live is not None:
            context.until(lambda: seen.has_begun(job), 60)
            live(job, seen)
        reports = job.run_to_end()
        context.note(f"steps of {numbers({rank: each['step_ms'] for rank, each in reports.items()})} ms by the ranks")
        time.sleep(2.5)  # two more readings of the agent
        return judge_slow_rank(context, job, seen)


def versions(context: Context) -> tuple[bool, str]:
    import platform

    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "cpus": str(os.cpu_count())}
    for name in ("msgspec", "pynvml", "prometheus_client", "grpc", "numpy", "opentelemetry.sdk"):
        done = subprocess.run(
            [sys.executable, "-c", f"import {name} as m; print(getattr(m, '__version__', 'there'))"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        found[name] = done.stdout.strip() or done.stderr.strip().splitlines()[-1]
    (context.raw / "nvidia-smi.txt").write_text(smi("-q"))
    (context.raw / "nvidia-smi.xml").write_text(smi("-q", "-x"))
    own = subprocess.run([*RANKWATCH, "--version"], capture_output=True, text=True, timeout=30, check=False)
    found["rankwatch"] = own.stdout.strip() or own.stderr[-300:]
    if not context.rehearse:
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpu"] = smi("--query-gpu=name,driver_version", "--format=csv,noheader").strip()
        (own_report,) = Job(context, "calibrate", world=1).run_to_end().values()
        found["cycles_per_ms"] = f"{own_report['cycles_per_ms']:.0f}"
    return own.returncode == 0, ", ".join(f"{name} {value}" for name, value in found.items())


def gpu_tests(context: Context) -> tuple[bool, str]:
    files = subprocess.run(
        ["grep", "-rl", "mark.gpu", "--include=test_*.py", str(ROOT / "tests")],
        capture_output=True, text=True, timeout=30, check=True,
    ).stdout.split()  # fmt: skip
    files = [each for each in files if Path(each).parent != Path(__file__).parent]
    junit = context.raw / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-m", "gpu", f"--junitxml={junit}", "-p", "no:cacheprovider"]
    command += ["--timeout", "60", "-rs", *files]
    with (context.raw / "pytest.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            code: int | str = process.wait(context.limit - 5)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = "cut off"
    text = (context.raw / "pytest.log").read_text(errors="replace")
    print(text[-6000:], flush=True)
    told = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return code == 0, f"status {code}; {(text.strip().splitlines() or [''])[-1]}; " + "; ".join(told)[:800]


def four_ranks(context: Context) -> tuple[bool, str]:
    with agent(context) as seen:
        job = Job(context, "sleeps", "--seconds", "12")
        context.until(lambda: seen.has_begun(job), 60)
        before, at = seen.cpu_seconds(), time.monotonic()
        reports = job.run_to_end()
        share = (seen.cpu_seconds() - before) / (time.monotonic() - at)
        watched = time.monotonic() - at
    alone = {rank: each["alone_ms"] for rank, each in reports.items()}
    together = {rank: each["together_ms"] for rank, each in reports.items()}
    spread = max(together.values()) / min(together.values()) - 1
    found = (
        f"50 ms of _sleep alone {numbers(alone, 1)}, together {numbers(together, 1)} ms (spread {spread:.1%}); "
        f"all-reduce of 4 MiB {numbers({rank: each['all_reduce_ms'] for rank, each in reports.items()}, 1)} ms; "
        f"agent {share:.2%} of a core in {watched:.0f} s"
    )
    return spread < 0.03 and share < 0.015, found


def ddp(context: Context) -> tuple[bool, str]:
    launches: list[int] = []

    def live(job: Job, seen: Agent) -> None:
        context.note(f"recorder live: {pull(context, job.folder, job.name)}")
        if context.rehearse:
            return
        with suppress(Exception):  # whatever it is, the answer is kept and the part goes on
            from rankwatch_agent.sources.nccl_ras.client import ask, parse_addresses
            from rankwatch_agent.sources.nccl_ras.json_form import parse_json

            (address,) = parse_addresses((f"127.0.0.1:{context.ras_port}",))
            answer = ask(address, 12.0)
            (context.raw / f"ras.{'json' if answer.json else 'txt'}").write_bytes(answer.body)
            launches.extend(each.launches for each in parse_json(answer.body).communicators)
        context.note(f"launches by RAS: {launches}")

    passed, found = slow_job(context, "ddp", live=live)
    live_pulls = any((context.raw / "ddp" / f"live_{each}").exists() for each in HANDLERS)
    return passed and live_pulls and (context.rehearse or any(launches)), found


def fsdp(context: Context) -> tuple[bool, str]:
    return slow_job(context, "fsdp")


def tensor(context: Context) -> tuple[bool, str]:
    return slow_job(context, "tensor")


def pipeline(context: Context) -> tuple[bool, str]:
    return slow_job(context, "pipeline")


def host(context: Context) -> tuple[bool, str]:
    with agent(context) as seen:
        Job(context, "host", "--slow-rank", str(SLOW_RANK), "--seconds", "18").run_to_end()
        time.sleep(2.5)
        named, all_inside = [], []
        for place in ("phase", "between", "loader"):
            run = f"host-{place}"
            verdict = diagnose(context, "run", str(context.boxes / run), name=f"run.{run}")
            slow = verdict.get("straggler") or {}
            local = seen.by_rank("rankwatch_step_local_seconds_total", run=run)
            step = seen.by_rank("rankwatch_step_seconds_total", run=run)
            inside = len(local) == 4 and all(local[rank] <= step.get(rank, 0.0) * 1.02 for rank in local)
            context.note(
                f"{place}: {slow.get('cause', verdict.get('error'))} {slow.get('phase')} "
                f"ranks {slow.get('ranks')}, local s {numbers(local, 2)}, step s {numbers(step, 2)}"
            )
            named.append(slow.get("ranks") == [SLOW_RANK] and (place != "loader" or slow["phase"] == "data_loading"))
            all_inside.append(inside)
    return all(named) and all(all_inside), f"named right: {named}, local <= step: {all_inside}"


def _judge_hang(context: Context, folder: Path, name: str) -> tuple[list[int], str]:
    """`diagnose hang` on each kept form of the dumps. The ranks of the first that has any."""
    ranks: list[list[int]] = []
    for kept in sorted(each for each in folder.glob("live_*") if each.is_dir()):
        verdict = diagnose(context, "hang", str(kept), name=f"hang.{name}.{kept.name}")
        evidence = json.dumps(verdict.get("evidence", {}).get("mismatches", ""))[:400]
        context.note(f"{name}, {kept.name}: {verdict.get('state', verdict)} ranks {verdict.get('ranks')} {evidence}")
        ranks.append(list(verdict.get("ranks") or []))
    agreed = ranks[0] if ranks and all(each == ranks[0] for each in ranks) else []
    return agreed, f"{name}: {ranks}"


def hang(context: Context) -> tuple[bool, str]:
    with agent(context, "--stall-seconds", "5"):
        job = Job(context, "ring", "--slow-rank", str(SLOW_RANK), "--seconds", "4", "--kind", "25")
        context.until(lambda: SLOW_RANK in job.reports() or not job.alive(), 70)
        time.sleep(8.0)
        context.note(f"recorder live: {pull(context, job.folder, job.name)}")
        live = diagnose(context, "run", str(context.boxes / job.name), "--stall-seconds", "5", name="run.live")
        context.note(f"live: {live.get('state', live)} ranks {live.get('ranks')}, {live.get('why')}")
        dumped, found = _judge_hang(context, job.folder, "ring")
        if not context.rehearse:  # the watchdog of the group writes dumps after its 25 seconds
            context.until(lambda: len(list(job.folder.glob("watchdog_rank_*"))) == 4 or not job.alive(), 30)
            files = job.folder / "live_watchdog"
            files.mkdir()
            for each in job.folder.glob("watchdog_rank_*"):
                shutil.move(each, files / each.name)
            written, _ = _judge_hang(context, job.folder, "ring, all forms")
            dumped = dumped if written == dumped else []
        job.stop(expect=(0, -9, -6, 1))
    return live.get("ranks") == [SLOW_RANK] and dumped == [SLOW_RANK], found


def desync(context: Context) -> tuple[bool, str]:
    kinds = ("size", "operation")
    jobs = [Job(context, "desync", "--slow-rank", "1", "--kind", kind, name=kind) for kind in kinds]
    context.until(lambda: all(len(each.reports()) == 4 for each in jobs) or not jobs[0].alive(), 60)
    time.sleep(6.0)
    judged = []
    for job in jobs:
        pull(context, job.folder, job.name)
        judged.append(_judge_hang(context, job.folder, job.name))
        job.stop(expect=(0, -9, -6, 1))
    return all(ranks == [1] for ranks, _ in judged), ", ".join(text for _, text in judged)


def _same_losses(context: Context, mode: str, start: Sequence[Job]) -> tuple[bool, str]:
    """The same losses bare and with zero-code; skipped as failed on our account only if the bare job ran."""
    bare, ours = (job.wait() for job in start)
    losses = [job.reports().get(0, {}).get("losses") for job in start]
    same = losses[0] is not None and losses[0] == losses[1]
    if losses[0] is None:
        return True, f"{mode}: the bare job fails too ({bare})"
    return same, f"{mode}: bare {bare} and ours {ours}, {len(losses[0])} losses, equal: {same}"


def _pair(context: Context, mode: str) -> list[Job]:
    return [
        Job(context, mode, world=1, name=f"{mode}-{'zero' if ours else 'bare'}", zero_code=ours)
        for ours in (False, True)
    ]


def graphs(context: Context) -> tuple[bool, str]:
    pairs = {mode: _pair(context, mode) for mode in ("graph", "compiled")}
    job = Job(context, "captures", "--seconds", "12", world=2)
    pulls = 0
    while any(each.poll() is None for each in job.processes) and context.left > 0:
        pulls += sum(pull(context, job.folder, job.name).values())
        time.sleep(0.05)
    codes = job.wait()
    captured = {rank: each.get("captures") for rank, each in job.reports().items()}
    context.note(f"captures with an all-reduce: {captured}, ranks ended with {codes}, {pulls} answers meanwhile")
    judged = [_same_losses(context, mode, pair) for mode, pair in pairs.items()]
    passed = all(each for each, _ in judged) and not any(codes) and pulls > 0
    return passed, "; ".join(text for _, text in judged)


def overhead(context: Context) -> tuple[bool, str]:
    passed = True
    lines = []
    for connections in ("",) if context.rehearse else ("", "1"):
        ports = {str(each): str(free_port()) for each in range(2)}
        more = {"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {}
        own = {f"ACCEPTANCE_PORT_{rank}": port for rank, port in ports.items()}
        off = {"RANKWATCH_DISABLE": "1"}
        name = f"overhead{connections}"
        job = Job(
            context, "overhead", "--kind", str(free_port()), world=2, name=name,
            environ=lambda rank, own=own, more=more: {**own, **more, **(off if rank else {})},  # type: ignore[misc]
        )  # fmt: skip
        ours, bare = (each for _, each in sorted(job.run_to_end().items()))
        slower = {each: ours[each] / bare[each] - 1 for each in ("step_2_ms", "step_20_ms")}
        added = {each: ours[each] - bare[each] for each in ("host_us_step", "host_us_collective")}
        lines.append(
            f"{'MAX_CONNECTIONS=1: ' if connections else ''}2 ms {slower['step_2_ms']:+.2%}, "
            f"20 ms {slower['step_20_ms']:+.2%}; host us per step {added['host_us_step']:.0f}, "
            f"per collective {added['host_us_collective']:.0f}"
        )
        context.note(lines[-1])
        passed &= slower["step_20_ms"] < 0.01 and added["host_us_step"] <= 60 and added["host_us_collective"] <= 40
    return passed, "; ".join(lines)


def frameworks(context: Context) -> tuple[bool, str]:
    with agent(context) as seen:
        pairs = {mode: _pair(context, mode) for mode in ("lightning", "transformers")}
        judged = [_same_losses(context, mode, pair) for mode, pair in pairs.items()]
        time.sleep(2.5)
        passed = all(each for each, _ in judged)
        for mode in pairs:
            run = f"{mode}-zero"
            parts = {
                own["phase"]: value for own, value in seen.series("rankwatch_step_phase_seconds_total", run=run)
            }
            local = sum(seen.by_rank("rankwatch_step_local_seconds_total", run=run).values())
            step = sum(seen.by_rank("rankwatch_step_seconds_total", run=run).values())
            context.note(f"{mode}: phases {sorted(parts)}, local {local:.2f} s of {step:.2f} s in steps")
            passed &= {"forward", "backward", "optimizer"} <= set(parts) and 0 < local <= step * 1.02
    return passed, "; ".join(text for _, text in judged)


def profiles(context: Context) -> tuple[bool, str]:
    job = Job(context, "profiled", "--slow-rank", str(SLOW_RANK), "--slow", str(SLOW))
    job.run_to_end()
    verdict = diagnose(context, "trace", str(job.folder / "traces"))
    evidence = verdict.get("evidence", {})
    found = (
        f"{verdict.get('cause', verdict)} {verdict.get('phase')} ranks {verdict.get('ranks')}, "
        f"of {evidence.get('traces')}, slowdown {verdict.get('slowdown')}"
    )
    return verdict.get("ranks") == [SLOW_RANK], found


def gloo(context: Context) -> tuple[bool, str]:
    before = used_mib()
    with agent(context) as seen:
        job = Job(
            context, "ddp", "--slow-rank", str(SLOW_RANK), "--slow", str(SLOW), "--seconds", "8", device="cpu"
        )
        context.until(lambda: seen.has_begun(job), 60)
        time.sleep(3.0)
        used = used_mib() - before
        owners = set(re.findall(r"\d+", smi("--query-compute-apps=pid", "--format=csv,noheader")))
        ours = sorted(owners & {str(each.pid) for each in job.processes})
        job.run_to_end()
        time.sleep(2.5)
        passed, found = judge_slow_rank(context, job, seen)
    text = f"{used:+d} MiB of GPU memory, pids with a context {ours}; {found}"
    return passed and not ours and used < 200, text


def contexts(context: Context) -> tuple[bool, str]:
    job = Job(context, "thread", world=1)
    context.until(lambda: job.reports() or not job.alive(), 30)
    answered = pull(context, job.folder, job.name)
    (job.folder / "release").touch()
    (own,) = job.run_to_end().values()
    found = [own[f"{name}_mib"] for name in ("before", "after_query", "after_pull")]
    text = f"MiB in use before, after the query and after the pull {found}; recorder {answered}"
    return max(found) - min(found) < 100 and own["answers"] == [True], text


def memory(context: Context) -> tuple[bool, str]:
    with agent(context) as seen:
        job = Job(context, "memory", world=1)
        codes = job.wait(expect=(1,))
        time.sleep(2.5)
        allocated = seen.by_rank("rankwatch_rank_gpu_memory_allocated_bytes", run=job.name)
        kinds = [own.get("kind") for own, _ in seen.series("rankwatch_rank_failures_total", run=job.name)]
        peak = seen.by_rank("rankwatch_rank_gpu_memory_peak_bytes", run=job.name)
    most = max([*allocated.values(), *peak.values(), 0.0])
    right = (10 << 30) <= most < (10 << 30) * 1.02
    return right and kinds == ["gpu_out_of_memory"], (
        f"status {codes}; allocated {numbers(allocated)}, peak {numbers(peak)}; failures {kinds}"
    )


def hardware(context: Context) -> tuple[bool, str]:
    def word(text: str | None) -> str:
        return re.sub(r"\W+", "_", (text or "").strip().lower())

    with agent(context) as seen:
        context.until(lambda: seen.series("rankwatch_gpu_up"), 20)
        time.sleep(3.0)
        page = seen.page()
    gpu = ElementTree.fromstring(smi("-q", "-x") or "<log/>").find("gpu")
    theirs = {
        "rankwatch_gpu_fabric_state": word(gpu.findtext("fabric/state")) if gpu is not None else "",
        "rankwatch_gpu_recovery_action": word(gpu.findtext(".//gpu_recovery_action")) if gpu is not None else "",
    }
    shown = [line for line in page.splitlines() if re.match(r"rankwatch_gpu\w*(xid|fabric|recovery)|rankwatch_xid", line)]
    active = {
        name: [text for own, value in samples(page, name) if value == 1 for text in own.values()] for name in theirs
    }
    right = {
        name: word(theirs[name]) in [word(each) for each in found] or (not found and theirs[name] in ("n_a", ""))
        for name, found in active.items()
    }
    log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, check=False).stdout
    lines = [line for line in log.splitlines() if "Xid" in line]
    (context.raw / "dmesg.xid.txt").write_text("\n".join(lines))
    counted = sum(value for _, value in samples(page, "rankwatch_gpu_xid_errors_total"))
    return all(right.values()), (
        f"nvidia-smi {theirs}, ours {active}; Xid lines in the kernel log {len(lines)}, counted {counted:.0f}; "
        f"{len(shown)} series"
    )


def synchronous(context: Context) -> tuple[bool, str]:
    with agent(context) as seen:
        job = Job(context, "synchronous", world=1)
        (own,) = job.run_to_end().values()
        time.sleep(2.0)
        errors = seen.by_rank("rankwatch_instrumentation_errors", run=job.name)
    return not own["error"] and not any(errors.values()), f"raised: {own['error'] or 'nothing'}; our errors {errors}"


@dataclass(frozen=True)
class Part:
    """A row of the plan."""

    name: str
    limit: float
    """Seconds, its end included."""
    expected: str
    run: Callable[[Context], tuple[bool, str]]
    needs_gpu: bool = False


NAMED = f"rank {SLOW_RANK} alone, local time +50 % (+35 to +65), local <= step on every rank"
PARTS: tuple[Part, ...] = (
    Part("versions", 45, "versions noted, rankwatch starts", versions),
    Part("contexts", 40, "no new context after a query in a new thread and a pull", contexts, True),
    Part("ranks", 60, "_sleep equal on all ranks within 3 %, agent below 1.5 % of a core", four_ranks),
    Part("ddp", 60, f"{NAMED}; recorder live, launches of RAS above 0", ddp),
    Part("fsdp", 60, NAMED, fsdp),
    Part("tensor", 60, NAMED, tensor),
    Part("pipeline", 60, NAMED, pipeline),
    Part("hang", 75, f"rank {SLOW_RANK} alone, live and from dumps of each form", hang),
    Part("desync", 60, "rank 1 alone, in both kinds", desync),
    Part("host", 60, f"rank {SLOW_RANK} in all three, data_loading for the loader, local <= step", host),
    Part("synchronous", 35, "no synchronising call, no error of ours", synchronous, True),
    Part("graphs", 80, "equal losses with zero-code, no error in captures during pulls", graphs, True),
    Part("gloo", 50, f"{NAMED}; no CUDA context of its ranks", gloo),
    Part("overhead", 60, "< 1 % at 20 ms; host <= 60 us a step, <= 40 us a collective", overhead),
    Part("memory", 45, "10 GiB shown, failure gpu_out_of_memory", memory, True),
    Part("profile", 55, f"rank {SLOW_RANK}", profiles),
    Part("frameworks", 70, "equal losses, all phases, local <= step", frameworks),
    Part("hardware", 30, "fabric state and recovery action as nvidia-smi says", hardware, True),
    Part("tests", 95, "all tests marked gpu pass", gpu_tests, True),
)
