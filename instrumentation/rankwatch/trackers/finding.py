"""Finds the trackers of a training process by what it has loaded, and notes them beside rank 0's box.

Finding imports nothing and calls no network. The file is for the agent and for people.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from rankwatch.conventions.vocabulary import TrackerKind
from rankwatch.untrusted.folders import Folder
from rankwatch.untrusted.text import json_entries, redacted_page, redacted_place

_WRITERS = (("torch.utils.tensorboard.writer", "SummaryWriter"), ("tensorboardX.writer", "SummaryWriter"))
_SCHEMES = ("http", "https")
SUFFIX = ".trackers"
MOST_BYTES = 8192
_LONGEST_URL = 512
_LONGEST_RUN = 256
_MOST_TRACKERS = 8
_IN_NO_URL = frozenset(" \"'<>\\^`{|}")


class Tracker(NamedTuple):
    """A run of a tracker."""

    kind: TrackerKind
    run: str
    """Its id there; of TensorBoard the directory."""
    url: str
    """Of its page; empty where it has none, as offline."""
    endpoint: str = ""
    """Of MLflow: the server, if there is one."""


class Found(NamedTuple):
    """A tracker and the object that stands for its run, None where there is only a variable."""

    tracker: Tracker
    handle: Any


def find(modules: Mapping[str, Any], env: Mapping[str, str], trackio_run: Any = None) -> list[Found]:
    """Return the trackers' runs of this process, from any thread. trackio_run: by `current_trackio_run`.

    What raises is left out: a module may be imported at this moment.
    """
    finders: tuple[Callable[[], Found | None], ...] = (
        lambda: _mlflow(modules, env),
        lambda: _wandb(modules),
        lambda: _trackio(trackio_run),
    )
    found = []
    for finder in finders:
        try:
            each = finder()
        except Exception:  # noqa: BLE001 - code of others, in any state
            continue
        if each is not None:
            found.append(each)
    return found


def current_trackio_run(modules: Mapping[str, Any]) -> Any:
    """Return trackio's run, which only the thread that began it can see; None without one."""
    variables = modules.get("trackio.context_vars")
    return None if variables is None else variables.current_run.get()


def tensorboard_writers(modules: Mapping[str, Any]) -> list[Found]:
    """Find TensorBoard's writers that are alive. Looks at all objects of the process: for its exit only."""
    kinds = tuple(
        kind
        for name, attribute in _WRITERS
        if (kind := getattr(modules.get(name), attribute, None)) is not None
    )
    if not kinds:
        return []
    return [
        Found(Tracker(TrackerKind.TENSORBOARD, redacted_place(_directory(each)), ""), each)
        for each in gc.get_objects()
        if type(each) in kinds
    ]


def _directory(writer: Any) -> str:
    return str(getattr(writer, "logdir", "") or writer.log_dir)


def _mlflow(modules: Mapping[str, Any], env: Mapping[str, str]) -> Found | None:
    run, experiment, uri = env.get("MLFLOW_RUN_ID", ""), env.get("MLFLOW_EXPERIMENT_ID", ""), ""
    module = modules.get("mlflow")
    if module is not None:
        active = _active_run(modules)
        if active is not None:
            run, experiment = str(active.info.run_id), str(active.info.experiment_id)
        if run:
            uri = str(module.get_tracking_uri())
    if not run:
        return None
    endpoint = without_credentials(uri or env.get("MLFLOW_TRACKING_URI", "")).rstrip("/")
    page = f"{endpoint}/#/experiments/{quote(experiment or '0')}/runs/{quote(run)}" if endpoint else ""
    return Found(Tracker(TrackerKind.MLFLOW, run, page, endpoint), module)


def _active_run(modules: Mapping[str, Any]) -> Any:
    """Return the run started last, in whatever thread: `mlflow.active_run` knows those of its thread."""
    latest = getattr(modules.get("mlflow.tracking.fluent"), "_get_latest_active_run", None)
    return modules["mlflow"].active_run() if latest is None else latest()


def _wandb(modules: Mapping[str, Any]) -> Found | None:
    run = getattr(modules.get("wandb"), "run", None)
    if run is None:
        return None
    return Found(Tracker(TrackerKind.WANDB, str(run.id), without_credentials(str(run.url or ""))), run)


def _trackio(run: Any) -> Found | None:
    if run is None:
        return None
    page = without_credentials(str(getattr(run, "url", None) or ""))
    return Found(Tracker(TrackerKind.TRACKIO, f"{run.project}/{run.name}", page), run)


def without_credentials(url: str) -> str:
    """Return the URL without user, password and keys; empty where it is none of the web."""
    parts = urlsplit(url)
    return redacted_page(url) if parts.scheme in _SCHEMES and parts.hostname else ""


def write_note(folder: Folder, name: str, trackers: Iterable[Tracker]) -> None:
    """Put the complete note in place, or none. Raises OSError."""
    folder.write(name, note_text(trackers).encode())


def note_text(trackers: Iterable[Tracker]) -> str:
    """Return the content of the note."""
    return json.dumps({"trackers": [each._asdict() for each in trackers if is_usable(each)][:_MOST_TRACKERS]})


def parse_note(raw: bytes) -> tuple[Tracker, ...]:
    """Return the trackers in a note. It is untrusted: what makes no sense is left out."""
    found = (_tracker(each) for each in json_entries(raw, "trackers", _MOST_TRACKERS))
    return tuple(_redacted(each) for each in found if each is not None and is_usable(each))


def _tracker(entry: object) -> Tracker | None:
    if not isinstance(entry, dict):
        return None
    kind, *texts = (entry.get(name, "") for name in Tracker._fields)
    if not all(isinstance(each, str) for each in (kind, *texts)) or kind not in set(TrackerKind):
        return None
    return Tracker(TrackerKind(kind), *texts)


def _redacted(tracker: Tracker) -> Tracker:
    """Redact a tracker, which an earlier version of rankwatch may have written whole."""
    return tracker._replace(run=redacted_place(tracker.run), url=redacted_page(tracker.url))


def is_usable(tracker: Tracker) -> bool:
    """Return True if its texts are short and plain, and its addresses are of the web."""
    addresses = all(not each or _is_web_address(each) for each in (tracker.url, tracker.endpoint))
    return addresses and len(tracker.run) <= _LONGEST_RUN and tracker.run.isprintable()


def _is_web_address(url: str) -> bool:
    if len(url) > _LONGEST_URL or not (url.isascii() and url.isprintable()) or _IN_NO_URL & set(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:  # such as a bracket that is not closed
        return False
