"""Errors of one code on one GPU, counted by source and by severity so that no count ever falls."""

from __future__ import annotations

from collections import Counter


class XidAccount:
    """Not safe for several threads at once."""

    def __init__(self) -> None:
        self.by_source: Counter[str] = Counter()
        self.by_severity: Counter[str] = Counter()
        """Together at most `total`; an error gets its severity once and keeps it."""
        self.last_timestamp_seconds: float | None = None
        self._open_since = 0.0

    def total(self) -> int:
        """Errors, each once: the source that knows of most is right."""
        return max(self.by_source.values(), default=0)

    def note(self, source: str, timestamp_seconds: float | None, severity: str | None, now: float) -> None:
        """One error; a severity of None stays open until the other source or `settle` gives one."""
        self.by_source[source] += 1
        self._note_timestamp(timestamp_seconds)
        if self._open() > 0 and severity is not None:
            self.by_severity[severity] += 1
        elif self._open() > 0:
            self._open_since = now

    def settle(self, severity: str, settled_before: float) -> None:
        """Give the severity to the errors for which nobody named one since `settled_before`."""
        if self._open() > 0 and self._open_since <= settled_before:
            self.by_severity[severity] += self._open()

    def absorb(self, other: XidAccount) -> None:
        """Add what was counted under another name of the same GPU."""
        self.by_source.update(other.by_source)
        self._note_timestamp(other.last_timestamp_seconds)
        self._open_since = max(self._open_since, other._open_since)
        for severity, count in other.by_severity.items():
            # Both may hold the same error, one from each source.
            self.by_severity[severity] += min(count, self._open())

    def _open(self) -> int:
        return self.total() - self.by_severity.total()

    def _note_timestamp(self, seconds: float | None) -> None:
        if seconds is not None:
            known = self.last_timestamp_seconds
            self.last_timestamp_seconds = seconds if known is None else max(known, seconds)
