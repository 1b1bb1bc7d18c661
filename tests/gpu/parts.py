"""The parts of the acceptance: what each does, and a table of names, time limits and expectations."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu.node import (
    HANDLERS,
    RANKWATCH,
    ROOT,
    Agent,
    Context,
    Job,
    agent,
    diagnose,
    free_port,
    numbers,
    pull,
    residual,
    samples,
    smi,
    used_mib,
)  # fmt: skip

SLOW_RANK, SLOW = 2, 1.5
RESIDUAL = (0.25, 0.65)
"""What +50 % of own work may look like: contexts that share a GPU stretch the work of ranks that compute at
the same time."""
MOST_APART = 0.05
"""By how much the local time of a rank may differ from its own work as the rank has timed it."""
Outcome = tuple[bool, str]
"""Whether it is as expected, and what was found."""


@dataclass(frozen=True)
class Judged:
    """What `diagnose run` and the agent's page say of a run with a slow rank."""

    named: list[int]
    phase: str | None
    over: float
    """By how much the local time of the slow rank exceeds that of its peers."""
    inside: bool
    """Whether the local time of each of four ranks is at most its step."""
    text: str

    @property
    def right(self) -> bool:
        return self.named == [SLOW_RANK] and self.inside and RESIDUAL[0] <= self.over <= RESIDUAL[1]


def judge(context: Context, seen: Agent, run: str, truth: Mapping[int, float] | None = None) -> Judged:
    """The verdict and the times of a step, which are printed for each rank.

    truth: milliseconds of own work in a step, as each rank has timed it itself.
    """
    (context.raw / f"agent.{run}.metrics.txt").write_text(seen.page())
    verdict = diagnose(context, "run", str(context.boxes / run), name=f"run.{run}")
    slow = verdict.get("straggler") or {}
    steps = seen.by_rank("rankwatch_steps_total", run=run)
    local, step = (
        {
            rank: seconds / max(1.0, steps.get(rank, 0.0)) * 1e3
            for rank, seconds in seen.by_rank(f"rankwatch_step_{name}seconds_total", run=run).items()
        }
        for name in ("local_", "")
    )
    inside = len(local) == 4 and all(own <= step.get(rank, 0.0) * 1.02 for rank, own in local.items())
    over, named = residual(local, SLOW_RANK), list(slow.get("ranks") or _heavy_stages(slow))
    apart = {rank: local.get(rank, 0.0) / own - 1 for rank, own in (truth or {}).items() if own}
    cause = slow.get("cause", verdict.get("error"))
    text = (
        f"{cause} {slow.get('phase')} ranks {named}; local ms {numbers(local)} ({over:+.0%}); "
        f"step ms {numbers(step)}{'' if inside else '; NOT local <= step on four ranks'}"
    )
    if truth:
        text += f"; own work as the ranks timed it {numbers(dict(truth))}, local apart from it by "
        text += " ".join(f"{rank}:{value:+.1%}" for rank, value in apart.items())
    most = max(map(abs, apart.values()), default=0.0)
    return Judged(named, slow.get("phase"), over, inside and most < MOST_APART, text)


def _heavy_stages(slow: dict[str, Any]) -> list[int]:
    """Of stages with one rank each the verdict names the heavy one, because it may just hold more layers."""
    causes = [each for each in slow.get("causes", []) if each.get("evidence", {}).get("heavy_stages")]
    most = max(causes, key=lambda each: each["share_of_steps"], default=None)
    return [] if most is None else [each["stage"] for each in most["evidence"]["heavy_stages"]]


def slow_job(
    context: Context, mode: str, *arguments: str, live: Callable[[Job], None] | None = None, **options: Any
) -> Outcome:
    """Four ranks of which one takes half as long again for its own work."""
    with agent(context) as seen:
        job = Job(
            context, mode, "--slow-rank", str(SLOW_RANK), "--slow", str(SLOW), "--seconds", "9", **options
        )
        if live is not None:
            context.until(lambda: seen.has_begun(job), 60)
            live(job)
        truth = {rank: each["own_ms"] for rank, each in job.run_to_end().items()}
        if job.device == "cpu":
            truth = {}  # there the layers take time, too, and only the emulated work is timed
        time.sleep(2.5)  # two more readings of the agent
        found = judge(context, seen, job.name, truth)
    return found.right, found.text


def versions(context: Context) -> Outcome:
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


def gpu_tests(context: Context) -> Outcome:
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


def four_ranks(context: Context) -> Outcome:
    with agent(context, often=False) as seen:
        job = Job(context, "sleeps", "--seconds", "12")
        context.until(lambda: seen.has_begun(job), 60)
        before, at = seen.cpu_seconds(), time.monotonic()
        reports = job.run_to_end()
        share = (seen.cpu_seconds() - before) / (time.monotonic() - at)
        watched = time.monotonic() - at
    alone, together, reduced = (
        {rank: each[name] for rank, each in reports.items()}
        for name in ("alone_ms", "together_ms", "all_reduce_ms")
    )
    spread = max(alone.values()) / min(alone.values()) - 1
    found = (
        f"_sleep of 50 ms alone {numbers(alone, 1)}, spread {spread:.1%}; together {numbers(together, 1)}; "
        f"all-reduce of 4 MiB {numbers(reduced, 1)} ms; "
        f"agent {share:.2%} of a core in {watched:.0f} s"
    )
    return spread < 0.03 and share < 0.015, found


def ddp(context: Context) -> Outcome:
    launches: list[int | None] = []

    def live(job: Job) -> None:
        answers = pull(context, job.folder, job.name)
        context.note(f"recorder live: {answers or 'no answer'}")
        if not context.rehearse:
            launches.extend(_launches(context))
            context.note(f"launches by RAS: {launches}")

    passed, found = slow_job(context, "ddp", live=live)
    live_pulls = any((context.raw / "ddp" / f"dumps_{each}").exists() for each in HANDLERS)
    return passed and live_pulls and (context.rehearse or any(launches)), found


def _launches(context: Context) -> list[int | None]:
    """Launches of each communicator by RAS, whose answer is kept; empty, with a note, where it has none."""
    from rankwatch_agent.runtime.errors import AgentError
    from rankwatch_agent.sources.nccl_ras.client import ask, parse_addresses
    from rankwatch_agent.sources.nccl_ras.json_form import parse_json

    (address,) = parse_addresses((f"127.0.0.1:{context.ras_port}",))
    try:
        answer = ask(address, 12.0)
        (context.raw / f"ras.{'json' if answer.json else 'txt'}").write_bytes(answer.body)
        return [each.launches for each in parse_json(answer.body).communicators]
    except AgentError as error:
        context.note(f"RAS: {error}")
        return []


def host(context: Context) -> Outcome:
    with agent(context) as seen:
        Job(context, "host", "--slow-rank", str(SLOW_RANK), "--seconds", "15").run_to_end()
        time.sleep(2.5)
        found = {place: judge(context, seen, f"host-{place}") for place in ("phase", "between", "loader")}
    right = all(each.named == [SLOW_RANK] and each.inside and each.over > 0.3 for each in found.values())
    text = "; ".join(f"{place}: {each.text}" for place, each in found.items())
    return right and found["loader"].phase == "data_loading", text


def _judge_dumps(context: Context, job: Job) -> list[int]:
    """`diagnose hang` on each form of the dumps that holds entries; the ranks on which all of them agree."""
    ranks: list[list[int]] = []
    for kept in sorted(each for each in job.folder.glob("dumps_*") if each.is_dir()):
        if not any(b"record_id" in each.read_bytes() for each in kept.iterdir()):
            continue
        verdict = diagnose(context, "hang", str(kept), name=f"hang.{job.name}.{kept.name}")
        calls = json.dumps(verdict.get("evidence", {}).get("mismatches", ""))[:400]
        state = verdict.get("state", verdict)
        context.note(f"{job.name}, {kept.name}: {state} ranks {verdict.get('ranks')} {calls}")
        ranks.append(list(verdict.get("ranks") or []))
    return ranks[0] if ranks and all(each == ranks[0] for each in ranks) else []


def hang(context: Context) -> Outcome:
    with agent(context, "--stall-seconds", "5"):
        job = Job(context, "ring", "--slow-rank", str(SLOW_RANK), "--seconds", "4", "--kind", "25")
        context.until(lambda: SLOW_RANK in job.reports() or not job.alive(), 70)
        time.sleep(8.0)
        answers = pull(context, job.folder, job.name)
        context.note(f"recorder live: {answers or 'no answer'}")
        directory = str(context.boxes / job.name)
        live = diagnose(context, "run", directory, "--stall-seconds", "5", name="run.live")
        context.note(f"live: {live.get('state', live)} ranks {live.get('ranks')}, {live.get('why')}")
        if not context.rehearse:
            _keep_watchdog(context, job)
        dumped = _judge_dumps(context, job)
        job.stop(expect=(0, -9, -6, 1))
    found = f"live {live.get('ranks')}, from dumps {dumped}"
    return live.get("ranks") == [SLOW_RANK] and dumped == [SLOW_RANK], found


def _keep_watchdog(context: Context, job: Job) -> None:
    """The files that each rank's watchdog writes once the timeout of the group has passed."""

    def written() -> list[Path]:
        return sorted(job.folder.glob("watchdog_rank_*"))

    context.until(lambda: len(written()) == 4 or not job.alive(), 30)
    time.sleep(1.0)  # the last one may still be written
    kept = job.folder / "dumps_of_watchdog"
    kept.mkdir()
    context.note(f"dumps of the watchdog: {[shutil.copy(each, kept) and each.name for each in written()]}")


def desync(context: Context) -> Outcome:
    kinds = ("size", "operation")
    jobs = [Job(context, "desync", "--slow-rank", "1", "--kind", kind, name=kind) for kind in kinds]
    context.until(lambda: all(len(each.reports()) == 4 for each in jobs) or not jobs[0].alive(), 60)
    time.sleep(6.0)
    found = {}
    for job in jobs:
        answers = pull(context, job.folder, job.name)
        context.note(f"recorder of {job.name}: {answers or 'no answer'}")
        found[job.name] = _judge_dumps(context, job)
        job.stop(expect=(0, -9, -6, 1))
    return all(ranks == [1] for ranks in found.values()), f"ranks {found}"


LEAST_APART = {"graph": 0.0, "compiled": 1e-6, "lightning": 0.0, "transformers": 0.0}
"""Relative difference of losses that passes: the compiler may choose other kernels in each process."""


def _bare_and_ours(context: Context, mode: str) -> list[Job]:
    """Twice bare and once with zero-code."""
    return [
        Job(context, mode, world=1, name=f"{mode}-{name}", zero_code=name == "zero")
        for name in ("bare", "again", "zero")
    ]


def _same_losses(mode: str, jobs: Sequence[Job]) -> Outcome:
    """Whether a job has the same losses with zero-code as bare: apart by no more than two bare ones are."""
    codes = [job.wait() for job in jobs]
    bare, again, ours = (job.reports().get(0, {}).get("losses") or [] for job in jobs)
    apart, noise = _apart(bare, ours), _apart(bare, again)
    text = (
        f"{mode}: ended with {codes}, {len(bare)} losses, apart by {apart:.1e} (two bare runs: {noise:.1e})"
    )
    return bool(bare) and apart <= max(noise, LEAST_APART[mode]), text


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    """Greatest relative difference; infinite where there are not as many."""
    if len(one) != len(other):
        return math.inf
    return max((abs(a - b) / max(abs(a), 1e-12) for a, b in zip(one, other, strict=True)), default=0.0)


def graphs(context: Context) -> Outcome:
    jobs = {mode: _bare_and_ours(context, mode) for mode in ("graph", "compiled")}
    off = {"RANKWATCH_DISABLE": "1"}
    bare = Job(context, "captures", "--seconds", "12", world=2, name="captures-bare", environ=lambda _: off)
    job = Job(context, "captures", "--seconds", "12", world=2)
    pulls, held_back = _ask_often(context, job)
    for each in (bare, job):
        codes, done = each.wait(), [own.get("captures") for own in each.reports().values()]
        context.note(f"{each.name}: {done} captures with an all-reduce, ended with {codes}")
    judged = [_same_losses(mode, each) for mode, each in jobs.items()]
    passed = all(each for each, _ in judged) and not any(codes) and pulls > 0
    asked = f"{pulls} answers of recorders between captures, {held_back} questions held back during one"
    return passed, "; ".join([*(text for _, text in judged), asked])


def _ask_often(context: Context, job: Job) -> tuple[int, int]:
    """Ask the ranks for their recorders as the agent does, and often; answers, and questions held back."""
    from rankwatch_agent.training.flight_recorder.ask import (
        CapturingRankError,
        FlightRecorderClient,
        FlightRecorderError,
    )  # fmt: skip

    answers = held_back = 0
    while any(each.poll() is None for each in job.processes) and context.left > 0:
        for path in (context.boxes / job.name).glob("*.sock"):
            try:
                FlightRecorderClient(path, os.geteuid()).ask()
                answers += 1
            except CapturingRankError:
                held_back += 1
            except FlightRecorderError:
                time.sleep(0.01)
    return answers, held_back


def overhead(context: Context) -> Outcome:
    found = [_overhead(context, each) for each in (("",) if context.rehearse else ("", "1"))]
    return all(passed for passed, _ in found), "; ".join(text for _, text in found)


def _overhead(context: Context, connections: str) -> Outcome:
    """Rank 0 records, rank 1 does not; they take turns."""
    shared = {f"ACCEPTANCE_PORT_{rank}": str(free_port()) for rank in range(2)}
    shared |= {"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections else {}
    job = Job(
        context, "overhead", "--kind", str(free_port()), world=2, name=f"overhead{connections}",
        environ=lambda rank: {**shared, **({"RANKWATCH_DISABLE": "1"} if rank else {})},
    )  # fmt: skip
    ours, bare = (each for _, each in sorted(job.run_to_end().items()))
    small, large = (ours[each] / bare[each] - 1 for each in ("step_2_ms", "step_20_ms"))
    step, collective = (ours[each] - bare[each] for each in ("host_us_step", "host_us_collective"))
    text = (
        f"{'MAX_CONNECTIONS=1: ' if connections else ''}2 ms {small:+.2%}, 20 ms {large:+.2%}, "
        f"host us per step {step:.0f} (bare {bare['host_us_step']:.0f}), "
        f"per collective {collective:.0f} (bare {bare['host_us_collective']:.0f})"
    )
    return large < 0.01 and step <= 60 and collective <= 40, text


def frameworks(context: Context) -> Outcome:
    with agent(context) as seen:
        jobs = {mode: _bare_and_ours(context, mode) for mode in ("lightning", "transformers")}
        judged = [_same_losses(mode, each) for mode, each in jobs.items()]
        time.sleep(2.5)
        for mode in jobs:
            run = f"{mode}-zero"
            series = seen.series("rankwatch_step_phase_seconds_total", run=run)
            phases = {own["phase"]: round(value, 3) for own, value in series}
            local, step = (
                sum(seen.by_rank(f"rankwatch_step_{name}seconds_total", run=run).values())
                for name in ("local_", "")
            )
            right = {"forward", "backward", "optimizer"} <= set(phases) and 0 < local <= step * 1.02
            judged.append((right, f"{mode}: phases {phases}, local {local:.2f} s of {step:.2f} s in steps"))
    return all(each for each, _ in judged), "; ".join(text for _, text in judged)


def profiles(context: Context) -> Outcome:
    job = Job(context, "profiled", "--slow-rank", str(SLOW_RANK), "--slow", str(SLOW))
    job.run_to_end()
    verdict = diagnose(context, "trace", str(job.folder / "traces"))
    evidence = verdict.get("evidence", {})
    found = (
        f"{verdict.get('cause', verdict)} {verdict.get('phase')} ranks {verdict.get('ranks')}, "
        f"of {evidence.get('traces')}, slowdown {verdict.get('slowdown')}"
    )
    return verdict.get("ranks") == [SLOW_RANK], found


def gloo(context: Context) -> Outcome:
    before = used_mib()
    seen: dict[str, Any] = {}

    def live(job: Job) -> None:
        time.sleep(3.0)
        owners = set(re.findall(r"\d+", smi("--query-compute-apps=pid", "--format=csv,noheader")))
        seen["pids"] = sorted(owners & {str(each.pid) for each in job.processes})
        seen["MiB"] = used_mib() - before

    passed, found = slow_job(context, "ddp", live=live, device="cpu")
    return passed and not seen["pids"] and seen["MiB"] < 200, f"on the GPU {seen}; {found}"


def contexts(context: Context) -> Outcome:
    job = Job(context, "thread", world=1)
    context.until(lambda: job.reports() or not job.alive(), 30)
    answered = pull(context, job.folder, job.name)
    (job.folder / "release").touch()
    (own,) = job.run_to_end().values()
    found = [own[f"{name}_mib"] for name in ("before", "after_query", "after_pull")]
    text = f"MiB in use before, after the query and after the pull {found}; recorder {answered}"
    return max(found) - min(found) < 100 and own["answers"] == [True], text


def memory(context: Context) -> Outcome:
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


def hardware(context: Context) -> Outcome:
    def word(text: str | None) -> str:
        return re.sub(r"\W+", "_", (text or "").strip().lower()).strip("_")

    with agent(context) as seen:
        context.until(lambda: seen.series("rankwatch_gpu_up"), 20)
        time.sleep(3.0)
        page = seen.page()
    gpu = ElementTree.fromstring(smi("-q", "-x") or "<log/>").find("gpu")
    paths = {"fabric_state": "fabric/state", "recovery_action": "gpu_recovery_action"}
    theirs, ours = {}, {}
    for name, path in paths.items():
        theirs[name] = word(gpu.findtext(f".//{path}") if gpu is not None else "")
        active = [own for own, value in samples(page, f"rankwatch_gpu_{name}") if value == 1]
        ours[name] = word(active[0].get("state") or active[0].get("action")) if active else "n_a"
    log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=10, check=False).stdout
    lines = [line for line in log.splitlines() if "Xid" in line]
    (context.raw / "dmesg.xid.txt").write_text("\n".join(lines))
    counted = sum(value for _, value in samples(page, "rankwatch_gpu_xid_errors_total"))
    up = [value for _, value in samples(page, "rankwatch_gpu_up")]
    text = (
        f"GPUs up {up}; ours {ours}, nvidia-smi {theirs}; Xids counted {counted:.0f}, in dmesg {len(lines)}"
    )
    return up == [1.0] and theirs == ours, text


def synchronous(context: Context) -> Outcome:
    with agent(context) as seen:
        job = Job(context, "synchronous", world=1)
        (own,) = job.run_to_end().values()
        time.sleep(2.0)
        errors = seen.by_rank("rankwatch_instrumentation_errors", run=job.name)
    return not own["error"] and not any(
        errors.values()
    ), f"raised: {own['error'] or 'nothing'}; our errors {errors}"


@dataclass(frozen=True)
class Part:
    """A row of the plan."""

    name: str
    limit: float
    """Seconds, its end included."""
    expected: str
    run: Callable[[Context], Outcome]
    needs_gpu: bool = False
    group: str = ""
    """Neighbours of one group run beside each other: they measure no time."""


NAMED = f"rank {SLOW_RANK} alone; local time within 5 % of own work as each rank timed it, and <= step"
PARTS: tuple[Part, ...] = (
    Part("versions", 80, "versions noted, rankwatch starts", versions),
    Part("contexts", 40, "no new context after a query in a new thread and a pull", contexts, True),
    Part(
        "ranks", 70, "_sleep of a rank alone equal on all within 3 %, agent below 1.5 % of a core", four_ranks
    ),
    Part("ddp", 70, f"{NAMED}; recorder live, launches of RAS above 0", ddp),
    Part("fsdp", 70, NAMED, partial(slow_job, mode="fsdp")),
    Part("tensor", 70, NAMED, partial(slow_job, mode="tensor")),
    Part("pipeline", 70, NAMED, partial(slow_job, mode="pipeline")),
    Part("hang", 80, f"rank {SLOW_RANK} alone, live and from dumps of each form", hang),
    Part("desync", 60, "rank 1 alone, in both kinds", desync, group="hung"),
    Part("hardware", 40, "fabric state and recovery action as nvidia-smi says", hardware, True, "hung"),
    Part("host", 70, f"rank {SLOW_RANK} in all three, data_loading for the loader, local <= step", host),
    Part("graphs", 80, "equal losses with zero-code, captures bear pulls", graphs, True, "many"),
    Part("synchronous", 50, "no synchronising call, no error of ours", synchronous, True, "many"),
    Part("frameworks", 75, "equal losses, all phases, local <= step", frameworks, group="many"),
    Part("memory", 50, "10 GiB shown, failure gpu_out_of_memory", memory, True, "many"),
    Part("overhead", 70, "< 1 % at 20 ms; host <= 60 us a step, <= 40 us a collective", overhead),
    Part("gloo", 60, f"{NAMED}; no CUDA context of its ranks", gloo),
    Part("profile", 60, f"rank {SLOW_RANK}", profiles),
    Part("tests", 95, "all tests marked gpu pass", gpu_tests, True),
)
