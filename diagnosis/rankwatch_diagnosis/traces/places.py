"""Which rank wrote a trace, and where it stands in its job: by what the profiler wrote beside the events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_MOST_RANK = 1 << 17
"""More ranks than a job has; those that are missing are listed."""
_RANK_IN_NAME = re.compile(r"rank[-_ ]?(\d{1,7})(?!\d)", re.IGNORECASE)
_PIPELINE = re.compile(r"pipeline|(?:^|_)pp(?:_|$)")
_DATA = re.compile(r"data_parallel|(?:^|_)(?:dp|ddp|fsdp|hsdp)(?:_|$)")
_MODEL = re.compile(r"tensor|model_parallel|(?:^|_)(?:tp|cp|ep)(?:_|$)")
_PARTS = re.compile(r"shard|replicate")
"""Dimensions of a mesh that together are the data parallel one."""
_RANKS = re.compile(r"\d{1,7}")


class Place(NamedTuple):
    """Coordinates of a rank, as in a table of operations."""

    stage: int
    replica: int


class Group(NamedTuple):
    """A process group that the rank belongs to."""

    name: str
    description: str
    ranks: tuple[int, ...]


def rank_of(fields: Mapping[str, object], file_name: str) -> int | None:
    """By what the profiler wrote, else by the name of the file; None where neither tells."""
    info = fields.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if isinstance(rank, str) and rank.isdecimal() and len(rank) < 9:
        rank = int(rank)
    if isinstance(rank, int) and 0 <= rank < _MOST_RANK:
        return rank
    named = _RANK_IN_NAME.search(file_name)
    return None if named is None else int(named[1])


def world_size_of(fields: Mapping[str, object]) -> int:
    """Ranks of the job; 0 where it is unknown."""
    info = fields.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if isinstance(size, int) and 0 < size < _MOST_RANK else 0


def groups_of(fields: Mapping[str, object]) -> Iterator[Group]:
    """The process groups that the profiler listed."""
    info = fields.get("distributedInfo")
    listed = info.get("pg_config") if isinstance(info, dict) else None
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict):
            name, description = (str(each.get(key, "")) for key in ("pg_name", "pg_desc"))
            yield Group(name, description, _ranks(each.get("ranks")))


def place_of(rank: int, fields: Mapping[str, object]) -> Place:
    """By the names of process groups, as Megatron and device meshes give them.

    A rank of a job without such names has batches of its own.
    """
    named = [
        (each.description.lower(), each.ranks)
        for each in groups_of(fields)
        if rank in each.ranks and len(each.ranks) > 1
    ]
    pipelines = [ranks for name, ranks in named if _PIPELINE.search(name) and not _DATA.search(name)]
    data = [(name, ranks) for name, ranks in named if _DATA.search(name)]
    stage = min(pipelines, key=len).index(rank) if pipelines else 0
    if not data:
        divided = pipelines or any(_MODEL.search(name) for name, _ in named)
        return Place(stage, 0 if divided else rank)
    whole = [ranks for name, ranks in data if not _PARTS.search(name)]
    if whole:
        return Place(stage, max(whole, key=len).index(rank))
    replica = 0
    for _, ranks in sorted(data):
        replica = replica * len(ranks) + ranks.index(rank)
    return Place(stage, replica)


def _ranks(listed: object) -> tuple[int, ...]:
    if isinstance(listed, str):
        listed = [int(each) for each in _RANKS.findall(listed)] if "..." not in listed else []
    if not isinstance(listed, list):
        return ()
    return tuple(each for each in listed if isinstance(each, int) and 0 <= each < _MOST_RANK)
