"""Parses the JSON form of RAS's answer, which NCCL 2.28.7 and newer have. It is untrusted input."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.nccl_ras.communicators import (
    MAX_COMMUNICATORS,
    MAX_NAMED_RANKS,
    Absence,
    BehindRank,
    Communicator,
    MissingRank,
    Process,
    Report,
)

MAX_OBJECTS = 300_000
"""Most braces in an answer. Each rank of each communicator has three: as many as `MAX_ANSWER_BYTES` has room
for."""

# NCCL 2.28.9 writes the entries of missing_ranks without the comma before "status".
_NO_COMMA = re.compile(rb'"nvml_dev": -?\d{1,9}(\s)\s{0,39}"status"')

_SUCCESS, _IN_PROGRESS = 0, 7
"""Of ncclResult_t. Every other value is an error."""
_MAX_COUNTS_BYTES = 4096
_MAX_COUNT = 1 << 63
_MOST_DIFFERENT = 1 << 15
"""Launch counts of ranks that differ: those of a communicator are the same, or two or three kinds."""
_MAX_KINDS = 64
"""NCCL has fewer than a dozen kinds of collectives."""

Counts = tuple[tuple[str, int], ...]
"""Launches of one rank by kind of collective, sorted."""

_Small = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class _Status(msgspec.Struct, gc=False):
    init_state: _Small
    async_error: _Small = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False

    @property
    def name(self) -> str:
        if self.abort_flag:
            return "abort"
        if self.finalize_called or self.destroy_flag:
            return "finalize"
        return "running" if self.init_state == _SUCCESS else "init"

    @property
    def failed(self) -> bool:
        return not {self.init_state, self.async_error} <= {_SUCCESS, _IN_PROGRESS}


class _Rank(msgspec.Struct, gc=False):
    rank: _Small
    host: _Text
    pid: _Small
    status: _Status
    collective_counts: msgspec.Raw
    cuda_dev: _Small = -1


class _MissingStatus(msgspec.Struct, gc=False):
    unresponsive: bool = False
    considered_dead: bool = False


class _Missing(msgspec.Struct, gc=False):
    rank: _Small
    host: _Text
    pid: _Small
    status: _MissingStatus
    cuda_dev: _Small = -1

    @property
    def absence(self) -> Absence:
        if self.status.considered_dead:
            return Absence.DEAD
        return Absence.UNRESPONSIVE if self.status.unresponsive else Absence.LEFT


class _Communicator(msgspec.Struct):
    hash: Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{1,16}$")]
    size: _Small
    ranks: list[_Rank]
    secondary_hash: _Text = ""
    missing_ranks: list[_Missing] = []


class _Answer(msgspec.Struct):
    nccl_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.+_-]{1,40}$")]
    communicators: list[_Communicator]


_decode = msgspec.json.Decoder(_Answer).decode
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode


def parse_json(body: bytearray) -> Report:
    """Parse the answer, and mend it in place. Raises CollectError."""
    if body.count(b"{") > MAX_OBJECTS:
        raise CollectError(f"could not read the answer of NCCL RAS: more than {MAX_OBJECTS} objects")
    try:
        for found in _NO_COMMA.finditer(body):
            body[found.start(1)] = ord(",")
        answer = _decode(body)
        if len(answer.communicators) > MAX_COMMUNICATORS:
            raise CollectError(
                f"could not read the answer of NCCL RAS: more than {MAX_COMMUNICATORS} communicators"
            )
        launches = LaunchReader()
        communicators = tuple(_communicator(*named, launches) for named in _named(answer.communicators))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise CollectError(f"could not read the answer of NCCL RAS: {error!s:.200}") from None
    missing = {_process(each): each.absence for comm in answer.communicators for each in comm.missing_ranks}
    absences = Counter(missing.values())
    return Report(
        communicators=communicators,
        processes_missing={each: absences[each] for each in Absence},
        pids=frozenset(each.pid for comm in answer.communicators for each in _all(comm)),
        largest=_largest(answer.communicators),
    )


def _named(communicators: Sequence[_Communicator]) -> list[tuple[_Communicator, str]]:
    """Name each communicator by its hash, followed by NCCL's second hash where the first is not unique."""
    often = Counter(each.hash for each in communicators)
    taken: set[str] = set()
    found = []
    for each in communicators:
        name = each.hash.removeprefix("0x").zfill(16)
        if often[each.hash] > 1:
            name = f"{name}/{each.secondary_hash.replace('0x', '')[:40]}"
        if name in taken or not (name.isascii() and name.isprintable()):
            continue
        taken.add(name)
        found.append((each, name))
    return found


def _communicator(each: _Communicator, name: str, launches: LaunchReader) -> Communicator:
    counts = [launches.read(rank.collective_counts) for rank in each.ranks]
    states = {rank.status.name for rank in each.ranks}
    absences = frozenset(rank.absence for rank in each.missing_ranks)
    mixed = len(states) > 1 or Absence.LEFT in absences
    behind = behind_others(counts)
    named = behind.items() if len(behind) <= MAX_NAMED_RANKS else ()
    return Communicator(
        name=name,
        size=each.size,
        fingerprint=hash(
            (tuple(counts), tuple(rank.status.name for rank in each.ranks), len(each.missing_ranks))
        ),
        missing=len(each.missing_ranks),
        absences=absences,
        named_missing=tuple(
            MissingRank(rank.rank, rank.absence, _process(rank))
            for rank in each.missing_ranks[:MAX_NAMED_RANKS]
        ),
        failed=any(rank.status.failed for rank in each.ranks),
        starting="init" in states,
        ending=bool(states) and states <= {"abort", "finalize"},
        uneven=mixed or len(set(counts)) > 1,
        spread=spread_of(counts),
        launches=max(map(total, counts), default=None),
        behind=len(behind),
        named_behind=tuple(
            BehindRank(each.ranks[at].rank, launches, _process(each.ranks[at])) for at, launches in named
        ),
    )


def _largest(communicators: Sequence[_Communicator]) -> dict[Process, int]:
    """Return the ranks of the largest communicator by process, or none where the largest ones differ."""
    size = max((each.size for each in communicators), default=0)
    largest = (each for each in communicators if each.size == size)
    views = ({_process(rank): rank.rank for rank in _all(each)} for each in largest)
    first = next(views, {})
    return first if all(view == first for view in views) else {}


def _all(communicator: _Communicator) -> Iterator[_Rank | _Missing]:
    yield from communicator.ranks
    yield from communicator.missing_ranks


def _process(rank: _Rank | _Missing) -> Process:
    return Process(rank.host, rank.pid, rank.cuda_dev)


class LaunchReader:
    """Parses the launch counts of ranks. Most ranks have the same text, which is parsed once."""

    def __init__(self) -> None:
        self._parsed: dict[bytes, Counts] = {}
        self._kinds: set[str] = set()

    def read(self, raw: msgspec.Raw) -> Counts:
        """Return the counts of one rank. Raises msgspec.MsgspecError or ValueError."""
        text = bytes(raw)
        counts = self._parsed.get(text)
        if counts is None:
            if len(text) > _MAX_COUNTS_BYTES:
                raise ValueError("the launch counts of a rank are too long")
            if len(self._parsed) == _MOST_DIFFERENT:
                raise ValueError(f"its ranks have more than {_MOST_DIFFERENT} different launch counts")
            counts = tuple(sorted(_decode_counts(text).items()))
            if any(not 0 <= count < _MAX_COUNT for _, count in counts):
                raise ValueError("a launch count is out of range")
            self._kinds.update(kind for kind, _ in counts)
            if len(self._kinds) > _MAX_KINDS:
                raise ValueError("there are too many kinds of collectives")
            self._parsed[text] = counts
        return counts


def total(counts: Counts) -> int:
    return sum(count for _, count in counts)


def spread_of(ranks: Sequence[Counts]) -> int | None:
    """Return most minus fewest launches, of the kind where that is largest; None without ranks."""
    if not ranks:
        return None
    fewest, most = _extremes(ranks)
    return max((most[kind] - fewest[kind] for kind in most), default=0)


def behind_others(ranks: Sequence[Counts]) -> dict[int, int]:
    """Map the position of each rank that has fewer launches in all than another to how many it is behind.

    Where all have as many, but of different kinds, the ranks that differ from the majority are behind.
    """
    patterns = Counter(ranks)
    most = max(map(total, patterns), default=0)
    late = {pattern for pattern in patterns if total(pattern) < most}
    if not late and len(patterns) > 1:
        usual, often = patterns.most_common(1)[0]
        late = set(patterns) - {usual} if 2 * often > len(ranks) else set()
    if not late:
        return {}
    _, tops = _extremes(ranks)
    behind = {pattern: max(tops[kind] - dict(pattern).get(kind, 0) for kind in tops) for pattern in late}
    return {position: behind[pattern] for position, pattern in enumerate(ranks) if pattern in late}


def _extremes(ranks: Sequence[Counts]) -> tuple[dict[str, int], dict[str, int]]:
    """Return fewest and most launches of each kind. A kind that a rank does not list counts as 0."""
    patterns = set(ranks)
    found: dict[str, list[int]] = {}
    for pattern in patterns:
        for kind, count in pattern:
            found.setdefault(kind, []).append(count)
    fewest = {kind: min(each) if len(each) == len(patterns) else 0 for kind, each in found.items()}
    return fewest, {kind: max(each) for kind, each in found.items()}
