"""Incidents of a run, from the manifests of the evidence bundles that the agent keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rankwatch.untrusted.folders import read_regular
from rankwatch_agent.incidents.bundle import MANIFEST_NAME
from rankwatch_diagnosis.loss.anomaly import Severity
from rankwatch_diagnosis.review.model import Event, EventKind

_MOST_BYTES = 4 << 20
_MOST_BUNDLES = 200
_LATEST = 1e11
"""Unix time in the year 5138."""


class KeptIncident(NamedTuple):
    """An evidence bundle, by its manifest."""

    bundle: Path
    run: str
    kind: str
    why: str
    opened: float
    """Unix time."""
    node: str
    ranks: tuple[int, ...]
    """Whom the evidence names."""
    missing: tuple[str, ...]
    """What the bundle lacks, and why."""

    def event(self) -> Event:
        """The incident as an event."""
        named = f"; the evidence names rank {', '.join(map(str, self.ranks[:8]))}" if self.ranks else ""
        text = f"{self.kind.replace('_', ' ')}: {self.why}{named}"
        source = f"evidence bundle {self.bundle.name}"
        return Event(self.opened, EventKind.INCIDENT, Severity.CRITICAL, text, source, node=self.node)


def read_incident(bundle: Path) -> KeptIncident | None:
    """The incident of a bundle; None where its manifest is missing or makes no sense."""
    import msgspec

    try:
        found = msgspec.json.decode(read_regular(bundle / MANIFEST_NAME, _MOST_BYTES))
    except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    opened = found.get("opened_timestamp_seconds") if isinstance(found, dict) else None
    if not isinstance(opened, int | float) or not 0.0 < opened < _LATEST:
        return None
    run, kind, why, node = (_text(found.get(name)) for name in ("run", "kind", "why", "node"))
    ranks, missing = _lists(found)
    return KeptIncident(bundle, run, kind, why, float(opened), node, ranks, missing)


def _lists(found: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The ranks that the verdict names, and what the bundle lacks."""
    verdict, missing = found.get("verdict"), found.get("missing")
    ranks = verdict.get("ranks") if isinstance(verdict, dict) else None
    lacking = missing[:64] if isinstance(missing, list) else []
    return (
        tuple(each for each in ranks if type(each) is int) if isinstance(ranks, list) else (),
        tuple(
            f"{_text(each.get('what'))}: {_text(each.get('why'))}"
            for each in lacking
            if isinstance(each, dict)
        ),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def incidents_of(run: str, evidence: Path) -> tuple[list[KeptIncident], str]:
    """The incidents of a run with evidence in this directory, and why none are seen; empty if they are."""
    try:
        folders = sorted(each for each in evidence.iterdir() if not each.name.startswith("."))
    except FileNotFoundError:
        return [], f"incidents: no evidence is kept in {evidence}"
    except OSError as error:
        return [], f"incidents: the evidence in {evidence} could not be read: {error.strerror or error}"
    return [each for each in _read(folders[-_MOST_BUNDLES:]) if each.run == run], ""


def _read(folders: list[Path]) -> Iterator[KeptIncident]:
    for each in folders:
        found = read_incident(each)
        if found is not None:
            yield found
