"""The runs of this node, from the headers and final states of their black boxes, and how users name them."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappush, heappushpop
from itertools import islice
from pathlib import Path

from rankwatch.blackbox.layout import SUFFIX
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.tenants import is_tenant, run_label
from rankwatch.conventions import environment
from rankwatch.conventions.states import ENDED_STATES, RankState
from rankwatch.errors import BlackBoxError
from rankwatch.untrusted.folders import Folder
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.turns import Turns, share
from rankwatch_agent.training.life.failures import rank_state, worst_state
from rankwatch_cli.output import note

MOST_RUNS = 10_000
"""Directories that are looked at."""
READ_SECONDS = 10.0
"""Time for reading boxes. Users take turns, with the newest directory of each first."""
RUN_SHARE = 0.2
"""The part of it that one directory gets at most."""
_MOST_BOXES = 1 << 16
_MOST_NAMES = 1 << 18
"""Of one run."""
_MOST_TENANTS = 256
_MOST_NAMED = 8
"""Runs that an error lists."""


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """One run, as its boxes on this node show it."""

    run: str
    short_name: str
    """Of its script or job; empty if it has none."""
    directory: Path
    owner: int
    """User id of the owner of the directory, whom the kernel vouches for."""
    state: RankState
    """The worst state of its ranks."""
    step: int
    """Highest number of a step; -1 before the first."""
    target_steps: int | None
    seconds_left: float | None
    """Until the target, at the mean pace since the start; None where no rank lives or it is unknown."""
    started: float
    """Unix time at which its latest process started; not after its box was last changed."""
    ended: float | None
    """Unix time of the last sign of life; None while a rank lives."""
    ranks: int
    """Ranks with a box here."""
    living: int
    world_size: int


def runs_directory(given: Path | None = None) -> Path:
    """Return where the runs are: the directory given, else that of the environment or the default."""
    return given or Path(os.environ.get(environment.DIRECTORY) or environment.DEFAULT_DIRECTORY)


def find_runs(base: Path, seconds: float = READ_SECONDS) -> list[RunSeen]:
    """Return the runs below `base`, the newest first. Folders without a usable box are left out, and those
    that cannot be read within these seconds; a note says how many."""
    return _runs_in(_folders(base), base, seconds)


def named_run(text: str | None, base: Path | None = None, *, announce: bool = False) -> Path:
    """Return what a user means by the name of a run, its beginning, a path, or nothing: the newest run.

    A full name comes before a short one. A short name means its newest run, also where it is the beginning of
    several names. But anybody can record a newer run, or one of any short name. So an ordinary user gets the
    own one, and root must say whose.

    base: where the runs are, by default `runs_directory()`.
    announce: prints the name of the newest run to standard error if no text is given.

    Raises UserError where nothing fits, or several runs do, or runs of several users.
    """
    base = base or runs_directory()
    if text is None:
        return _newest_run(base, announce)
    if os.sep in text or text in (".", "..", ""):
        return Path(text)
    folders = _folders(base)
    named = {run_label(each.path, base, each.owner): each for each in folders}
    exact = [named[text]] if text in named else _folder_called(text, base)
    if not exact and Path(text).exists():
        return Path(text)
    short = [each for each in _runs_in(folders, base) if each.short_name == text]
    if exact or short:
        return _called(text, exact, [*map(_folder_of, short)]).path
    fitting = sorted(name for name in named if name.startswith(text))
    if len(fitting) == 1:
        return named[fitting[0]].path
    if fitting:
        names = ", ".join(fitting[:_MOST_NAMED])
        raise UserError(f"{text!r} is the beginning of {len(fitting)} runs ({names}): give more of the name")
    raise UserError(f"{text!r} is no run in {base} and no path; `rankwatch ls` lists the runs")


def _called(name: str, exact: Sequence[_RunFolder], short: Sequence[_RunFolder]) -> _RunFolder:
    """Return the run with this full name, else one with this short name; the own one first, but for root."""
    me = os.geteuid()
    kinds = [[each for each in kind if me and each.owner == me] for kind in (exact, short)]
    found = _of_one_user(next(filter(None, (*kinds, exact, short))), repr(name))
    others = {each.owner: each for each in reversed(short) if each.owner != found.owner}
    if found.owner != me and others:
        theirs = _listed([*others.values()])
        note(f"{name!r} is the full name of {_listed([found])}; it is the short name of {theirs}, too")
    return found


def _newest_run(base: Path, announce: bool) -> Path:
    found = {_folder_of(each): each for each in find_runs(base)}
    if not found:
        raise UserError(f"no run is recorded in {base}; RANKWATCH_DIR names another directory")
    newest = found[_of_one_user([*found], "the newest run")]
    if announce:
        note(f"newest run: {newest.run}")
    return newest.directory


def _of_one_user(fitting: Sequence[_RunFolder], meant: str) -> _RunFolder:
    """Return the first of these runs. The own user's come before others, but root is there for everybody.

    Raises UserError if they belong to several users.
    """
    me = os.geteuid()
    fitting = [each for each in fitting if me and each.owner == me] or fitting
    firsts = {each.owner: each for each in reversed(fitting)}
    if len(firsts) == 1:
        return fitting[0]
    raise UserError(
        f"{meant} may be that of any of {len(firsts)} users ({_listed([*firsts.values()])}): "
        "give the directory of the right one"
    )


def _listed(folders: Sequence[_RunFolder]) -> str:
    more = ", ..." if len(folders) > _MOST_NAMED else ""
    return ", ".join(f"{each.path} of user {each.owner}" for each in folders[:_MOST_NAMED]) + more


def boxes_of(folder: Path) -> dict[int, Path]:
    """Rank -> black box, for a run's directory that somebody has named; in the order of ranks."""
    try:
        with Folder.open(folder, follow=True) as opened:
            return _boxes_in(opened)
    except OSError:
        return {}  # none, gone meanwhile, or of another user


def _boxes_in(folder: Folder) -> dict[int, Path]:
    paths = (folder.path / name for name in islice(folder.names(), _MOST_NAMES))
    boxes = ((int(each.stem), each) for each in paths if each.suffix == SUFFIX and each.stem.isdecimal())
    return dict(sorted(islice(boxes, _MOST_BOXES)))


@dataclass(frozen=True)
class _RunFolder:
    path: Path
    owner: int
    """User id."""


def _folder_of(run: RunSeen) -> _RunFolder:
    return _RunFolder(run.directory, run.owner)


def _folders(base: Path) -> list[_RunFolder]:
    """Return the directories of runs, also those of tenants, the newest first.

    Where there are too many, users take turns with their newest ones, so that nobody hides those of others.
    """
    newest: dict[int, list[tuple[int, Path]]] = {}
    count = 0
    for mtime, path, owner in _directories(base):
        count += 1
        of_owner = newest.setdefault(owner, [])
        (heappush if len(of_owner) < MOST_RUNS else heappushpop)(of_owner, (mtime, path))
    found = sorted(((*each, owner) for owner, listed in newest.items() for each in listed), reverse=True)
    picked, _ = share(
        (_RunFolder(path, owner) for _, path, owner in found), owner=lambda each: each.owner, most=MOST_RUNS
    )
    if len(picked) < count:
        note(f"looking at {len(picked)} of {count} directories in {base}, the newest ones of each user")
    return picked


def _directories(base: Path, *, of_tenant: bool = False) -> Iterator[tuple[int, Path, int]]:
    """Yield mtime, path and owner of each directory of a run; links are none."""
    tenants = []
    try:
        with Folder.open(base, follow=not of_tenant) as folder:
            for name in folder.names():
                try:
                    status = folder.status_of(name)
                except OSError:
                    continue  # gone meanwhile
                if not stat.S_ISDIR(status.st_mode):
                    continue
                if not of_tenant and is_tenant(name, status):
                    tenants.append(base / name)
                else:
                    yield status.st_mtime_ns, base / name, status.st_uid
    except OSError:
        return  # none, gone meanwhile, or of another user
    for each in tenants[:_MOST_TENANTS]:
        yield from _directories(each, of_tenant=True)


def _folder_called(name: str, base: Path) -> list[_RunFolder]:
    """Return the directory of this name, if there is one."""
    try:
        with Folder.open(base, follow=True) as folder:
            status = folder.status_of(name)
    except OSError:
        return []
    return [_RunFolder(base / name, status.st_uid)] if stat.S_ISDIR(status.st_mode) else []


def _runs_in(folders: Sequence[_RunFolder], base: Path, seconds: float = READ_SECONDS) -> list[RunSeen]:
    found: list[RunSeen] = []
    slow: list[_RunFolder] = []
    turns = Turns(folders, owner=lambda each: each.owner, spent=time.monotonic, most=seconds)
    for folder in turns:
        try:
            seen = _read(folder, base, time.monotonic() + RUN_SHARE * seconds)
        except TimeoutError:
            slow.append(folder)
        else:
            found.extend(() if seen is None else (seen,))
    unread = [*slow, *turns.left]
    if unread:
        note(
            f"{len(unread)} of {len(folders)} directories in {base} could not be read in time, such as "
            f"{unread[0].path}: `rankwatch ls --seconds N` reads longer than {seconds:g} s, and "
            "`rankwatch summary DIRECTORY` reads one"
        )
    return sorted(found, key=lambda each: each.started, reverse=True)


def _read(folder: _RunFolder, base: Path, ends: float) -> RunSeen | None:
    """Return what the boxes in a directory show. Raises TimeoutError after the moment `ends`, monotonic."""
    try:
        with Folder.open(folder.path) as opened:
            boxes = _boxes_in(opened).values() if opened.owner == folder.owner else ()
            ranks = [*filter(None, (_read_rank(each, opened, ends) for each in boxes))]
    except TimeoutError:
        raise
    except OSError:
        return None  # gone meanwhile, of another user, or a link has taken its place
    if not ranks:
        return None
    latest = max(ranks, key=lambda each: each.started)
    living = sum(each.state not in ENDED_STATES for each in ranks)
    return RunSeen(
        run=run_label(folder.path, base, folder.owner),
        short_name=latest.short_name,
        directory=folder.path,
        owner=folder.owner,
        state=worst_state({each.state for each in ranks}),
        step=max(each.step for each in ranks),
        target_steps=latest.target_steps,
        seconds_left=_seconds_left(latest) if living else None,
        started=latest.started,
        ended=None if living else max(each.last_sign for each in ranks),
        ranks=len(ranks),
        living=living,
        world_size=latest.world_size,
    )


def _seconds_left(rank: _Rank) -> float | None:
    """Estimate the seconds left, with the start of the process in the pace: it rather says too much."""
    spent = rank.last_sign - rank.started
    if not rank.target_steps or rank.steps_completed < 2 or spent <= 0.0:
        return None
    return max(0, rank.target_steps - rank.step - 1) * spent / rank.steps_completed


@dataclass(frozen=True, kw_only=True)
class _Rank:
    short_name: str
    world_size: int
    state: RankState
    step: int
    steps_completed: int
    target_steps: int | None
    started: float
    last_sign: float


def _read_rank(path: Path, folder: Folder, ends: float) -> _Rank | None:
    if time.monotonic() > ends:
        raise TimeoutError
    try:
        reader = Reader(path, folder=folder)
    except BlackBoxError:
        return None
    try:
        alive, now, header = reader.writer_alive(), reader.now(), reader.header
    except (BlackBoxError, OSError):
        return None
    finally:
        reader.close()
    signs: Mapping[int, float] = now.phases_began
    started = min(header.started_wall, reader.changed_wall)  # the header only claims it
    last = max(header.started_monotonic, now.step_ended, now.step_began, *signs.values())
    return _Rank(
        short_name=header.identity.short_name,
        world_size=header.identity.world_size,
        state=rank_state(path, now.ended_by, alive=alive, stepped=now.steps_completed > 0),
        step=now.step if now.steps_completed or now.step_began else -1,
        steps_completed=now.steps_completed,
        target_steps=now.target_steps or header.target_steps,
        started=started,
        last_sign=started + last - header.started_monotonic,
    )
