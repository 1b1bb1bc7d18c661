"""`python -m tests.bench.rules_pages`: serve the `/metrics` pages of a job of any size.

One HTTP server on loopback has a path for each agent. `POST /stall` stalls the run from then on.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankwatch.members import members_text
from rankwatch_agent.runtime.config import AgentConfig
from support.servers.loopback import Handler, serving_http
from support.training.replayed_job import RUN

from .process_usage import scrape
from .processes import rankwatch_agent, temporary_directory
from .rules_template import (
    ASLEEP_REPLICA,
    ASLEEP_STAGE,
    REPLICAS,
    SLOW_REPLICA,
    SLOW_STAGE,
    STAGES,
    Line,
    Template,
    make_template,
)

NODE_RANKS = 8
LEAST_RANKS = STAGES * REPLICAS
CLUSTER = "bench"
_MOST_SCRAPES = 30
_NODE_LABELS = re.compile(r'(?:cluster|node)="[^"]*",?')


class Job(NamedTuple):
    """A job of 8 stages, with ranks in Megatron's order and 8 replicas of a stage on a node."""

    replicas: int

    @classmethod
    def of(cls, ranks: int) -> Job:
        """Raises ValueError if the ranks do not fill nodes of 8."""
        if ranks < LEAST_RANKS or ranks % (STAGES * NODE_RANKS):
            raise ValueError(
                f"{ranks} ranks; expected a multiple of {STAGES * NODE_RANKS} from {LEAST_RANKS} on"
            )
        return cls(ranks // STAGES)

    @property
    def ranks(self) -> int:
        return STAGES * self.replicas

    @property
    def nodes(self) -> int:
        return self.ranks // NODE_RANKS

    @property
    def faulty_node(self) -> int:
        """Index of the stage's node with the faults: one in the middle."""
        return self.replicas // NODE_RANKS // 2

    @property
    def slow_rank(self) -> int:
        return SLOW_STAGE * self.replicas + self.faulty_node * NODE_RANKS + SLOW_REPLICA

    @property
    def asleep_rank(self) -> int:
        return ASLEEP_STAGE * self.replicas + self.faulty_node * NODE_RANKS + ASLEEP_REPLICA

    def place(self, node: int) -> tuple[int, int]:
        """Stage, and index of the node in it."""
        return divmod(node, self.replicas // NODE_RANKS)


class _Lines:
    """Lines whose values are `value + rate * t`, formatted quickly."""

    def __init__(self, lines: Sequence[tuple[str, Line]], began: float) -> None:
        self._began = began
        self._still = "".join(f"{head} {_value(each, began)!r}\n" for head, each in lines if not each.rate)
        moving = [(head, each) for head, each in lines if each.rate]
        self._heads = [f"{head} " for head, _ in moving]
        self._values: NDArray[np.float64] = np.array([_value(each, began) for _, each in moving])
        self._rates: NDArray[np.float64] = np.array([each.rate for _, each in moving])

    def at(self, moment: float) -> str:
        """The lines at a Unix time."""
        values = (self._values + self._rates * (moment - self._began)).tolist()
        moving = [f"{head}{value!r}\n" for head, value in zip(self._heads, values, strict=True)]
        return self._still + "".join(moving)


def _value(line: Line, began: float) -> float:
    return line.value + began if line.is_moment else line.value


class Pages:
    """The pages of a job's agents at any moment, before and after the stall.

    run: name of its run; None takes that of the template.
    first_node: number of its first node among those of all jobs.
    """

    def __init__(
        self,
        job: Job,
        template: Template,
        agent: Sequence[str],
        began: float,
        *,
        run: str | None = None,
        first_node: int = 0,
    ) -> None:
        self._job, self._template, self._agent = job, template, agent
        self._run, self._first_node = run, first_node
        self._training = [
            _Lines(
                [*self._heads(node, template.training), *self._heads(node, template.last_collectives)], began
            )
            for node in range(job.nodes)
        ]
        self._hung: list[tuple[str, _Lines]] = []

    def stall(self, moment: float) -> None:
        """From this Unix time on no value grows, and collectives are those of the hang."""
        self._hung = [
            (
                _without_last_collectives(training.at(moment)),
                _Lines(self._heads(node, self._template.hung), moment),
            )
            for node, training in enumerate(self._training)
        ]

    def of(self, node: int, moment: float) -> bytes:
        """The page of a node at a Unix time."""
        name = self._name(node)
        own = "".join(each.format(node=name, now=moment) for each in self._agent)
        if not self._hung:
            return (own + self._training[node].at(moment)).encode()
        frozen, hung = self._hung[node]
        return (own + frozen + hung.at(moment)).encode()

    def _name(self, node: int) -> str:
        return f"node-{self._first_node + node}"

    def _heads(self, node: int, lines: Mapping[int, list[Line]]) -> list[tuple[str, Line]]:
        """The lines of the node of the small job that this node copies, with their labels in this job."""
        stage, number = self._job.place(node)
        faulty = number == self._job.faulty_node
        first = (number - (0 if faulty else 1)) * NODE_RANKS
        model = lines[stage * (REPLICAS // NODE_RANKS) + (0 if faulty else 1)]
        return [(_head(each, self._labels(each, stage, node, first)), each) for each in model]

    def _labels(self, line: Line, stage: int, node: int, first: int) -> dict[str, str]:
        """`first` is the offset of this node's replicas from those of the small job."""
        labels = {**line.labels, "cluster": CLUSTER, "node": self._name(node)}
        if self._run is not None and "run" in labels:
            labels["run"] = self._run
        if "rank" in labels:
            replica = int(labels["rank"]) % REPLICAS + first
            labels["rank"] = str(stage * self._job.replicas + replica)
        if "members" in labels:
            labels["members"] = _members(self._job, labels["members"], stage, first)
        if "world_size" in labels:
            labels |= {"world_size": str(self._job.ranks), "host": labels["node"]}
        return labels


@cache
def _members(job: Job, text: str, stage: int, first: int) -> str:
    """Members of a group: all ranks, the replicas of a stage, or the stages of a replica."""
    if text == members_text(range(STAGES * REPLICAS)):
        return members_text(range(job.ranks))
    if "/" not in text:
        return members_text(range(stage * job.replicas, (stage + 1) * job.replicas))
    replica = int(text.partition("-")[0]) + first
    return members_text(range(replica, job.ranks, job.replicas))


def _without_last_collectives(page: str) -> str:
    """The page without the metrics that the hang replaces."""
    replaced = ("rankwatch_collective_last_", "rankwatch_flight_recorder_")
    return "".join(each for each in page.splitlines(keepends=True) if not each.startswith(replaced))


def _head(line: Line, labels: Mapping[str, str]) -> str:
    return line.name + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def agent_lines() -> list[str]:
    """Lines of a real agent about itself and its host, to be formatted with `node` and `now`."""
    with temporary_directory() as name, rankwatch_agent(Path(name), Path(name) / "none") as (_, address):
        lines: list[str] = []
        for _ in range(_MOST_SCRAPES):
            before, lines = lines, [each for each in scrape(address).text.splitlines() if _is_own(each)]
            if len(before) == len(lines):
                break  # each collector has run
            time.sleep(1.0)
    return [_agent_line(each) for each in lines]


def _is_own(line: str) -> bool:
    """True for a sample of rankwatch. Collectors that fail on this machine are not part of the job."""
    return line.startswith("rankwatch_") and 'state="failed"' not in line


def _agent_line(line: str) -> str:
    head, _, value = line.rpartition(" ")
    name, _, labels = head.rstrip("}").partition("{")
    own = _NODE_LABELS.sub("", labels).rstrip(",")
    moving = "{now!r}" if name.endswith("_timestamp_seconds") else value
    ours = f'cluster="{CLUSTER}",node="{{node}}"'
    return f"{name}{{{{{own + ',' if own else ''}{ours}}}}} {moving}\n"


def _handler(runs: Sequence[Pages], nodes: int) -> type[Handler]:
    """nodes: of each run."""

    class Agents(Handler):
        def answer(self) -> None:
            if self.command == "POST":
                runs[0].stall(time.time())
                self.reply()
                return
            run, node = divmod(int(self.path.rpartition("-")[2]), nodes)
            self.reply(runs[run].of(node, time.time()))

    return Agents


def main(arguments: Sequence[str]) -> int:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rules_pages", description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument(
        "--runs", type=int, default=1, help="runs of so many ranks together; the first is at fault"
    )
    parser.add_argument("--address-file", type=Path, required=True)
    given = parser.parse_args(arguments)
    job = Job.of(given.ranks // given.runs)
    template = make_template(large=job.ranks > AgentConfig().max_single_ranks)
    agent, began = agent_lines(), time.time()
    names = [RUN, *(f"{RUN}-{number}" for number in range(2, given.runs + 1))]
    runs = [
        Pages(job, template, agent, began, run=name, first_node=number * job.nodes)
        for number, name in enumerate(names)
    ]
    with serving_http(_handler(runs, job.nodes)) as address:
        partial = given.address_file.with_suffix(".partial")
        partial.write_text(address)
        partial.rename(given.address_file)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
