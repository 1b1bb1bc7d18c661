"""`python -m tests.bench.hostile_node`: an honest run on a node that two users attack, for five minutes.

Everything is real: the agent, the run of a third user, the attackers' programs, and a scraper in a network
namespace of its own, as Prometheus is another machine. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from support.agent.process import AgentProcess, agent_process, fetch
from support.processes.users import ALICE, BOB, CAROL, become, program_of
from support.training.ranks import rank

from .hostile_attacks import ATTACKS
from .process_usage import MIB, cpu_seconds, footprint, resident_bytes
from .processes import exit_on_signals, free_ports
from .result import BenchError, Result, Row, as_markdown, limited, met

RUN = "honest"
RANKS = 2
SECRET = "PrivateSecret"
"""What nobody but the honest user may read."""
PRIVATE_FILES = 5
STEP_SECONDS = 0.05
SCRAPE_SECONDS, MEMORY_BYTES = 1.0, 256 * MIB
"""What must be reached, and between two scrapes."""
_AGENT_ADDRESS, _SCRAPER_ADDRESS = "10.213.77.1", "10.213.77.2"
_START_SECONDS = 60.0
_SCRAPER = """
import gzip, http.client, json, re, sys, time
address, run, ranks, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
secret = sys.argv[5].encode()
end = time.monotonic() + seconds
while time.monotonic() < end:
    began = time.monotonic()
    found = {"status": 0, "steps": {}, "bytes": 0, "attack_runs": 0, "secrets": 0, "forged": 0}
    try:
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
        response = connection.getresponse()
        body = response.read()
        found |= {"status": response.status, "bytes": len(body)}
        found["seconds"] = time.monotonic() - began
        connection.close()
        if response.headers.get("Content-Encoding"):
            body = gzip.decompress(body)
        pattern = r'^rankwatch_steps_total{[^}]*rank="(\\d+)",run="([^"]*)"[^}]*} (\\S+)'
        steps = re.findall(pattern, body.decode(), re.M)
        found["steps"] = {rank: float(value) for rank, name, value in steps if name == run}
        found["secrets"] = int(secret in body)
        nccl = re.findall(r'^rankwatch_nccl_[^{]*{[^}]*run="([^"]*)"', body.decode(), re.M)
        found["nccl"], found["forged"] = len(nccl), nccl.count(run)
        states = re.findall(r'^rankwatch_rank_state{[^}]*run="([^"]*)"', body.decode(), re.M)
        found["attack_runs"] = len(set(states) - {run})
    except OSError as error:
        found |= {"error": str(error), "seconds": time.monotonic() - began}
    print(json.dumps(found), flush=True)
    time.sleep(max(0.0, began + 1.0 - time.monotonic()))
"""


class Usage(NamedTuple):
    """The agent at one moment."""

    cpu_seconds: float
    resident_bytes: int
    with_children_bytes: int
    file_descriptors: int


def main(arguments: list[str]) -> int:
    """Exit status 0, or 1 if nothing could be measured or a target was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hostile_node", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="length of the attack (default 300)")
    parser.add_argument("--log", type=Path, help="file for the agent's log")
    given = parser.parse_args(arguments)
    exit_on_signals()
    try:
        result = measure(seconds=given.seconds, log=given.log)
    except BenchError as error:
        print(f"hostile_node: {error}", file=sys.stderr)
        return 1
    print(as_markdown(result))
    return 0 if met(result) else 1


def measure(*, seconds: float, log: Path | None = None) -> Result:
    """Attack a real agent for this long."""
    if os.geteuid() != 0:
        raise BenchError("only root can start programs of other users")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rankwatch-", dir="/dev/shm")))
        folder.chmod(0o711)
        boxes = folder / "blackboxes"
        boxes.mkdir()
        boxes.chmod(0o1777)
        private = _private(folder)
        network = stack.enter_context(_another_machine())
        probes = f"127.0.0.1:{free_ports(1)[0]}"
        flags = ["--listen", "0.0.0.0:0", "--probe-listen", probes]
        flags += ["--evidence-directory", str(folder / "evidence")]
        flags += ["--intervals-seconds", "nccl_ras=20"]
        agent = stack.enter_context(agent_process(folder, *flags))
        _log_to(agent, log or folder / "agent.log")
        for number in range(RANKS):
            code = f"steps(2)\nprint('ready', flush=True)\nwhile True: steps(1, {STEP_SECONDS})"
            how = {"run": RUN, "number": number, "world": RANKS, "before": become(CAROL)}
            stack.enter_context(rank(boxes, code, **how))
        port = agent.address.rpartition(":")[2]
        _wait_ready(probes)
        _wait_until(lambda: _ranks_shown(agent.address.replace("0.0.0.0", "127.0.0.1")) == RANKS)
        for user in (ALICE, BOB):
            for attack in ATTACKS.values():
                against = (f"127.0.0.1:{port}", probes, RUN, str(private))
                stack.enter_context(program_of(user, boxes, attack, *against))
        return _watch(agent, network, f"{_AGENT_ADDRESS}:{port}", probes, seconds, private)


def _private(folder: Path) -> Path:
    """A folder of the honest user, which nobody else may read, with files as the agent would remove them."""
    private = folder / "private"
    (private / "earlier").mkdir(parents=True)
    for name in ("0.blackbox", "0.lines", "0.killed", "earlier/0-0.blackbox", "secret.json"):
        (private / name).write_text(json.dumps({"message": f"{SECRET}: {SECRET}"}))
    for path in (private, *private.rglob("*")):
        os.chown(path, CAROL, CAROL)
        path.chmod(0o700 if path.is_dir() else 0o600)
    return private


def _watch(
    agent: AgentProcess, network: str, address: str, probes: str, seconds: float, private: Path
) -> Result:
    command = ["ip", "netns", "exec", network, sys.executable, "-c", _SCRAPER]
    command += [address, RUN, str(RANKS), str(seconds), SECRET]
    answers, usages = [], [_usage(agent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as scraper:
        assert scraper.stdout is not None
        scrapes = []
        for line in scraper.stdout:
            scrapes.append(json.loads(line))
            answers += [_probe(probes, path) for path in ("/healthz", "/readyz")]
            usages.append(_usage(agent))
    if agent.process.poll() is not None:
        raise BenchError(f"the agent ended with status {agent.process.returncode}")
    if not scrapes:
        raise BenchError("nothing was scraped")
    for number, each in enumerate(scrapes):
        if len(each["steps"]) < RANKS or each["seconds"] > SCRAPE_SECONDS:
            print(f"hostile_node: scrape {number}: {each}", file=sys.stderr)
    lost = PRIVATE_FILES - sum(path.is_file() for path in private.rglob("*"))
    return _result(seconds, scrapes, answers, usages, lost)


def _result(
    seconds: float,
    scrapes: list[dict[str, Any]],
    answers: list[tuple[int, float]],
    usages: list[Usage],
    lost: int,
) -> Result:
    forged = [each for each in scrapes if each["forged"]]
    took = sorted(each["seconds"] for each in scrapes)
    without = sum(1 for each in scrapes if len(each["steps"]) < RANKS)
    going = [sum(each["steps"].values()) for each in scrapes if len(each["steps"]) == RANKS]
    stood = _longest_standstill(going)
    failed = sum(1 for status, _ in answers if status != 200)
    peak = max(each.resident_bytes for each in usages)
    cores = (usages[-1].cpu_seconds - usages[0].cpu_seconds) / seconds
    rows = (
        _none("scrapes without a series of the honest run", without, len(scrapes)),
        limited("longest scrape", took[-1], SCRAPE_SECONDS, _seconds, f"median {_seconds(median(took))}"),
        _none("probes that did not answer", failed, len(answers)),
        _none("files of a private folder removed", lost, PRIVATE_FILES),
        _none("scrapes with its content", sum(each["secrets"] for each in scrapes), len(scrapes)),
        _none("scrapes with a state of NCCL for the honest run", len(forged), len(scrapes)),
        Row("longest probe", _seconds(max(each for _, each in answers))),
        limited("peak memory of the agent", peak, MEMORY_BYTES, _mib),
        Row("with its children", _mib(max(each.with_children_bytes for each in usages))),
        Row("file descriptors", str(max(each.file_descriptors for each in usages))),
        Row("CPU", f"{cores:.2f} cores"),
        Row("steps of the honest run seen", f"{going[-1] - going[0]:.0f}" if going else "none"),
        Row("longest time without a new step", f"{stood} scrapes"),
        Row("series of the forged NCCL state", str(max(each.get("nccl", 0) for each in scrapes))),
        Row("runs of the attackers shown", str(max(each["attack_runs"] for each in scrapes))),
        Row("largest page, compressed", f"{max(each['bytes'] for each in scrapes) / 1024:.0f} KiB"),
    )
    notes = (f"{seconds:g} s; each of two users at once: {'; '.join(ATTACKS)}",)
    return Result(
        title="An honest run on a hostile node",
        rows=rows,
        notes=notes,
        samples={"scrape_seconds": took, "resident_bytes": [each.resident_bytes for each in usages]},
    )


def _longest_standstill(steps: list[float]) -> int:
    longest = standing = 0
    for before, after in pairwise(steps):
        standing = standing + 1 if after <= before else 0
        longest = max(longest, standing)
    return longest


def _none(what: str, count: int, of: int) -> Row:
    return Row(what, f"{count} of {of}", "", "none", count == 0)


def _seconds(value: float) -> str:
    return f"{value:.3f} s"


def _mib(value: float) -> str:
    return f"{value / MIB:.0f} MiB"


def _usage(agent: AgentProcess) -> Usage:
    pid = agent.process.pid
    whole = footprint(pid)
    return Usage(cpu_seconds(pid), resident_bytes(pid)[1], whole.resident_bytes, whole.file_descriptors)


def _probe(address: str, path: str) -> tuple[int, float]:
    """Status, 0 for none, and seconds."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(address, timeout=5.0)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException):
        status = 0
    finally:
        connection.close()
    return status, time.monotonic() - began


def _wait_ready(probes: str) -> None:
    _wait_until(lambda: _probe(probes, "/readyz")[0] == 200)


def _ranks_shown(address: str) -> int:
    text = fetch(address, "/metrics").body.decode()
    return sum(line.startswith("rankwatch_steps_total{") for line in text.splitlines())


def _wait_until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + _START_SECONDS
    while not ready():
        if time.monotonic() > end:
            raise BenchError(f"the agent was not ready within {_START_SECONDS:g} s")
        time.sleep(0.1)


def _log_to(agent: AgentProcess, path: Path) -> None:
    """Keep the agent's log out of the pipe, which would fill up."""
    assert agent.process.stderr is not None
    with path.open("w") as file:
        subprocess.Popen(["cat"], stdin=agent.process.stderr, stdout=file)  # ends with the agent


@contextlib.contextmanager
def _another_machine() -> Iterator[str]:
    """A network namespace with a cable to this one."""
    name = f"rankwatch-{os.getpid()}"
    near = f"rw{os.getpid()}"
    commands = (
        ("link", "add", near, "type", "veth", "peer", "name", "v1", "netns", name),
        ("addr", "add", f"{_AGENT_ADDRESS}/30", "dev", near),
        ("link", "set", near, "up"),
        ("-n", name, "addr", "add", f"{_SCRAPER_ADDRESS}/30", "dev", "v1"),
        ("-n", name, "link", "set", "v1", "up"),
    )
    try:
        _ip("netns", "add", name)
    except OSError as error:
        raise BenchError(f"could not make a network namespace: {error}") from None
    try:
        for command in commands:
            _ip(*command)
        yield name
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"could not run ip {' '.join(arguments)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
