"""The runs of this node, from the headers and final states of their black boxes, and how users name them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankwatch.blackbox.layout import SUFFIX
from rankwatch.blackbox.reader import Reader
from rankwatch.blackbox.tenants import run_label, tenants_of
from rankwatch.conventions import ENDED_STATES, RankState, environment
from rankwatch.errors import BlackBoxError
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.rank_states import rank_state, worst_state
from rankwatch_cli.output import note

MOST_RUNS = 10_000
_MOST_BOXES = 1 << 16
"""Of one run."""


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """One run, as its boxes on this node show it."""

    run: str
    short_name: str
    """Of its script or job; empty if it has none."""
    directory: Path
    state: RankState
    """The worst state of its ranks."""
    step: int
    """Highest number of a step; -1 before the first."""
    target_steps: int | None
    seconds_left: float | None
    """Until the target, at the mean pace since the start; None where no rank lives or it is unknown."""
    started: float
    """Unix time at which its latest process started."""
    ended: float | None
    """Unix time of the last sign of life; None while a rank lives."""
    ranks: int
    """Ranks with a box here."""
    living: int
    world_size: int


def runs_directory(given: Path | None = None) -> Path:
    """Where the runs are: the directory given, else that of the environment or the default."""
    return given or Path(os.environ.get(environment.DIRECTORY) or environment.DEFAULT_DIRECTORY)


def find_runs(base: Path) -> list[RunSeen]:
    """The runs below `base`, the newest first. Folders without a usable box are left out."""
    found = [seen for folder in _folders(base) if (seen := _read(folder, base)) is not None]
    return sorted(found, key=lambda each: each.started, reverse=True)


def named_run(text: str | None, base: Path, *, announce: bool = False) -> Path:
    """What a user means by the name of a run, its beginning, a path, or nothing: the newest run.

    A short name means its newest run, also where it is the beginning of several names.

    announce: prints the name of the newest run to standard error if no text is given.

    Raises UserError where nothing fits, or several runs do.
    """
    if text is None:
        return _newest_run(base, announce)
    plain = os.sep not in text and text not in (".", "..", "")
    if plain and (base / text).is_dir():
        return base / text
    if Path(text).exists() or not plain:
        return Path(text)
    for each in find_runs(base):
        if each.short_name == text:
            return each.directory
    named = {run_name(each, base): each for each in _folders(base)}
    if text in named:
        return named[text]
    fitting = [name for name in named if name.startswith(text)]
    if len(fitting) == 1:
        return named[fitting[0]]
    if fitting:
        names = ", ".join(fitting[:8])
        raise UserError(f"{text!r} is the beginning of {len(fitting)} runs ({names}): give more of the name")
    raise UserError(f"{text!r} is no run in {base} and no path; `rankwatch ls` lists the runs")


def _newest_run(base: Path, announce: bool) -> Path:
    found = find_runs(base)
    if not found:
        raise UserError(f"no run is recorded in {base}; RANKWATCH_DIR names another directory")
    if announce:
        note(f"newest run: {found[0].run}")
    return found[0].directory


def boxes_of(folder: Path) -> dict[int, Path]:
    """Rank -> black box, for a run's directory; in the order of ranks."""
    found: dict[int, Path] = {}
    for path in _listed(folder):
        if path.suffix == SUFFIX and path.stem.isdecimal() and len(found) < _MOST_BOXES:
            found[int(path.stem)] = path
    return dict(sorted(found.items()))


def _folders(base: Path) -> list[Path]:
    """The directories of runs, also those of tenants."""
    tenants = tenants_of(base)
    listed = (each for folder in (base, *tenants) for each in _listed(folder) if each not in tenants)
    found = (each for each in listed if each.is_dir() and not each.is_symlink())
    return sorted(each for each, _ in zip(found, range(MOST_RUNS), strict=False))


def run_name(folder: Path, base: Path) -> str:
    """The name of the run in a directory, as labels have it."""
    try:
        return run_label(folder, base, folder.lstat().st_uid)
    except OSError:
        return folder.name  # gone meanwhile


def _listed(folder: Path) -> Iterator[Path]:
    try:
        yield from folder.iterdir()
    except OSError:
        return  # none, gone meanwhile, or of another user


def _read(folder: Path, base: Path) -> RunSeen | None:
    ranks = [rank for path in boxes_of(folder).values() if (rank := _read_rank(path)) is not None]
    if not ranks:
        return None
    latest = max(ranks, key=lambda each: each.started)
    living = sum(each.state not in ENDED_STATES for each in ranks)
    return RunSeen(
        run=run_name(folder, base),
        short_name=latest.short_name,
        directory=folder,
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
    """With the start of the process in the pace, so that it rather says too much."""
    spent = rank.last_sign - rank.started
    if not rank.target_steps or rank.steps_completed < 2 or spent <= 0.0:
        return None
    return max(0, rank.target_steps - rank.step - 1) * spent / rank.steps_completed


@dataclass(frozen=True, kw_only=True)
class _Rank:
    run: str
    short_name: str
    world_size: int
    state: RankState
    step: int
    steps_completed: int
    target_steps: int | None
    started: float
    last_sign: float


def _read_rank(path: Path) -> _Rank | None:
    try:
        reader = Reader(path)
    except BlackBoxError:
        return None
    try:
        alive, now, header = reader.writer_alive(), reader.now(), reader.header
    except (BlackBoxError, OSError):
        return None
    finally:
        reader.close()
    signs: Mapping[int, float] = now.phases_began
    last = max(header.started_monotonic, now.step_ended, now.step_began, *signs.values())
    return _Rank(
        run=header.identity.run,
        short_name=header.identity.short_name,
        world_size=header.identity.world_size,
        state=rank_state(path, now.ended_by, alive=alive, stepped=now.steps_completed > 0),
        step=now.step if now.steps_completed or now.step_began else -1,
        steps_completed=now.steps_completed,
        target_steps=now.target_steps or header.target_steps,
        started=header.started_wall,
        last_sign=header.wall(last),
    )
