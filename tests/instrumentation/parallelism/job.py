"""A rank on gloo that trains the reference model in every parallel way, run as a program.

It writes a report as a JSON file. For each case it has the records of the black box and those of
gloo's own flight recorder, which is independent of rankwatch.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ring
import slow_rank
import torch
import torch.distributed as dist
import trainings
from torch._C._distributed_c10d import _dump_fr_trace_json

import rankwatch
from rankwatch.blackbox import layout
from rankwatch.blackbox.layout import RecordKind
from rankwatch.blackbox.reader import Reader

CASES = {**trainings.CASES, **ring.CASES}


class Observer:
    """Reads the records of a case in the black box and in the flight recorder."""

    def __init__(self, box: Path) -> None:
        self.reader = Reader(box)
        self.entries = 0

    def seen(self) -> list[dict[str, Any]]:
        """Records of collectives, sends and receives since the last call, once none is in flight."""
        deadline = time.monotonic() + 20.0
        while any(group.oldest for group in self.reader.now().groups) and time.monotonic() < deadline:
            time.sleep(0.005)
        groups = {group.number: group for group in self.reader.now().groups}
        found = []
        for record in self.reader.poll().records():
            if record.kind != RecordKind.COLLECTIVE:
                continue
            size, number, name, flags, waited = layout.COLLECTIVE.unpack_from(record.payload)
            found.append(
                {
                    "operation": self.reader.name(record.name),
                    "group": groups[name].name,
                    "members": groups[name].members,
                    "bytes": size,
                    "number": number,
                    "blocking": bool(flags & layout.BLOCKING),
                    "failed": bool(flags & layout.FAILED),
                    "point_to_point": bool(flags & layout.POINT_TO_POINT),
                    "untimed": bool(flags & layout.UNTIMED),
                    "waited": waited,
                    "start": record.start,
                    "end": record.end,
                }
            )
        return found

    def truth(self) -> list[dict[str, Any]]:
        """Entries of gloo's flight recorder since the last call. It has no sends and no receives.

        A group that was destroyed meanwhile counts as a group of all ranks.
        """
        entries = json.loads(_dump_fr_trace_json()).get("entries", [])
        new = [each for each in entries if each["record_id"] >= self.entries]
        self.entries = max((each["record_id"] + 1 for each in entries), default=0)
        world = dist.distributed_c10d._world
        ranks = {name: list(world.pg_group_ranks[group]) for group, name in world.pg_names.items()}
        return [
            {
                "operation": each["profiling_name"],
                "group": each["process_group"][1],
                "ranks": ranks.get(each["process_group"][0], list(range(dist.get_world_size()))),
            }
            for each in sorted(new, key=lambda each: each["record_id"])
        ]

    def tables(self) -> list[dict[str, Any]]:
        """The tables of process groups in the black box."""
        return [group._asdict() for group in self.reader.now().groups]


def count_calls(calls: Counter[str]) -> None:
    """Count sends and receives when Python passes them to a process group."""

    def counted(operation: str, original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[operation] += 1
            return original(*arguments, **named)

        return call

    group = dist.ProcessGroup
    for method, operation in (("send", "send"), ("recv", "recv"), ("recv_anysource", "recv")):
        setattr(group, method, counted(operation, getattr(group, method)))


def main(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    run = rankwatch.start(flight_recorder=False)
    dist.init_process_group("gloo")
    observer = Observer(directory / "job" / f"{rank}.blackbox")
    calls: Counter[str] = Counter()
    count_calls(calls)
    report: dict[str, Any] = {}
    for name, case in CASES.items():
        calls.clear()
        facts = case(rank) or {}
        dist.barrier()
        seen, truth = observer.seen(), observer.truth()
        report[name] = {"seen": seen, "truth": truth, "calls": dict(calls), "facts": facts}
    slow = slow_rank.train(run, rank, directory / "job")
    report["slow rank"] = {"facts": slow, "seen": observer.seen()}
    report["tables"] = observer.tables()
    report["box"] = str(observer.reader.path)
    report["errors"] = observer.reader.now().errors
    run.finish()
    (directory / f"{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(os.environ["RANK"]), Path(os.environ["RANKWATCH_DIR"]))
