"""The structured answer of RAS, from NCCL 2.28.7 on. Untrusted: objects are counted, fields have types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.nccl_ras.communicators import (
    MAX_COMMUNICATORS,
    MAX_NAMED_RANKS,
    Absence,
    Communicator,
    LateRank,
    MissingRank,
    Process,
    Report,
)

Counts = tuple[tuple[str, int], ...]
"""Kind of collective and launches of it, sorted; of one rank."""

_MAX_BYTES = 4096
_MAX_COUNT = 1 << 63
_MAX_KINDS = 64
"""NCCL has fewer than a dozen."""
_decode_counts = msgspec.json.Decoder(dict[str, int]).decode


class LaunchReader:
    """Reads launch counts out of JSON; most ranks have the very same text."""

    def __init__(self) -> None:
        self._known: dict[bytes, Counts] = {}
        self._kinds: set[str] = set()

    def read(self, raw: msgspec.Raw) -> Counts:
        """The counts of one rank; raises msgspec.MsgspecError or ValueError."""
        text = bytes(raw)
        known = self._known.get(text)
        if known is None:
            if len(text) > _MAX_BYTES:
                raise ValueError("the launch counts of a rank are too long")
            known = tuple(sorted(_decode_counts(text).items()))
            if any(not 0 <= count < _MAX_COUNT for _, count in known):
                raise ValueError("a launch count is out of range")
            self._kinds.update(kind for kind, _ in known)
            if len(self._kinds) > _MAX_KINDS:
                raise ValueError("there are too many kinds of collectives")
            self._known[text] = known
        return known


def total(counts: Counts) -> int:
    """Launches of all kinds."""
    return sum(count for _, count in counts)


def spread_of(ranks: Sequence[Counts]) -> int | None:
    """Most minus fewest launches, of the kind in which that is most; None without ranks."""
    if not ranks:
        return None
    fewest, most = _extremes(ranks)
    return max((most[kind] - fewest[kind] for kind in most), default=0)


def behind_others(ranks: Sequence[Counts]) -> dict[int, int]:
    """Position -> launches behind, of each rank that has fewer in all than another.

    Where all have as many, and not of the same kinds, it is those of another mind than most.
    """
    minds = Counter(ranks)
    most = max(map(total, minds), default=0)
    late = {mind for mind in minds if total(mind) < most}
    if not late and len(minds) > 1:
        usual, often = minds.most_common(1)[0]
        late = set(minds) - {usual} if 2 * often > len(ranks) else set()
    if not late:
        return {}
    _, tops = _extremes(ranks)
    behind = {mind: max(tops[kind] - dict(mind).get(kind, 0) for kind in tops) for mind in late}
    return {at: behind[mind] for at, mind in enumerate(ranks) if mind in late}


def _extremes(ranks: Sequence[Counts]) -> tuple[dict[str, int], dict[str, int]]:
    """Fewest and most launches of each kind; a kind that a rank does not tell counts as none of it."""
    minds = [dict(mind) for mind in set(ranks)]
    kinds = {kind for mind in minds for kind in mind}
    fewest = {kind: min(mind.get(kind, 0) for mind in minds) for kind in kinds}
    return fewest, {kind: max(mind.get(kind, 0) for mind in minds) for kind in kinds}


MAX_OBJECTS = 1_000_000
"""Braces of an answer; three for each rank of each communicator."""

# NCCL 2.28.9 writes the entries of missing_ranks without the comma before "status".
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d{1,9})(\s{1,40}"status")')

_SUCCESS, _IN_PROGRESS = 0, 7
"""Of ncclResult_t; everything else is an error."""

_Small = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class _Status(msgspec.Struct):
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


class _Rank(msgspec.Struct):
    rank: _Small
    host: _Text
    pid: _Small
    status: _Status
    collective_counts: msgspec.Raw
    cuda_dev: _Small = -1


class _MissingStatus(msgspec.Struct):
    unresponsive: bool = False
    considered_dead: bool = False


class _Missing(msgspec.Struct):
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


class _Ras(msgspec.Struct):
    timeouts_count: _Small = 0


class _Answer(msgspec.Struct):
    nccl_version: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.+_-]{1,40}$")]
    communicators: list[_Communicator]
    ras: _Ras = msgspec.field(default_factory=_Ras)


_decode = msgspec.json.Decoder(_Answer).decode


def parse_json(body: bytes) -> Report:
    """The report; raises CollectError."""
    if body.count(b"{") > MAX_OBJECTS:
        raise CollectError(f"could not read the answer of NCCL RAS: more than {MAX_OBJECTS} objects")
    try:
        answer = _decode(_NO_COMMA.sub(rb"\1,\2", body))
        if len(answer.communicators) > MAX_COMMUNICATORS:
            raise CollectError(
                f"could not read the answer of NCCL RAS: more than {MAX_COMMUNICATORS} communicators"
            )
        launches = LaunchReader()
        found = tuple(_communicator(each, name, launches) for each, name in _named(answer.communicators))
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise CollectError(f"could not read the answer of NCCL RAS: {error!s:.200}") from None
    missing = {_process(each): each.absence for comm in answer.communicators for each in comm.missing_ranks}
    absences = Counter(missing.values())
    return Report(
        version=answer.nccl_version,
        communicators=found,
        timeouts=max(0, answer.ras.timeouts_count),
        processes_missing={each: absences[each] for each in Absence},
        pids=frozenset(process.pid for comm in answer.communicators for process in _places(comm)),
        largest=_largest(answer.communicators),
    )


def _named(communicators: Sequence[_Communicator]) -> list[tuple[_Communicator, str]]:
    """Each with its hash; with NCCL's second hash behind it where the first is not unique."""
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
    late = behind_others(counts)
    return Communicator(
        name=name,
        size=each.size,
        mark=hash((tuple(counts), tuple(rank.status.name for rank in each.ranks), len(each.missing_ranks))),
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
        behind=len(late),
        late=tuple(_late(each.ranks[at], behind) for at, behind in late.items())
        if len(late) <= MAX_NAMED_RANKS
        else (),
    )


def _late(rank: _Rank, behind: int) -> LateRank:
    return LateRank(rank.rank, behind, _process(rank))


def _largest(communicators: Sequence[_Communicator]) -> dict[Process, int]:
    size = max((each.size for each in communicators), default=0)
    views = [_places(each) for each in communicators if each.size == size]
    return views[0] if views and all(view == views[0] for view in views) else {}


def _places(communicator: _Communicator) -> dict[Process, int]:
    told = {_process(each): each.rank for each in communicator.ranks}
    return told | {_process(each): each.rank for each in communicator.missing_ranks}


def _process(rank: _Rank | _Missing) -> Process:
    return Process(rank.host, rank.pid, rank.cuda_dev)
