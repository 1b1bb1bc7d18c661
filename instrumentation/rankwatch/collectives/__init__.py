"""Every collective, send and receive of the process, seen at PyTorch's dispatcher."""

from __future__ import annotations

from rankwatch.collectives.hook import CollectiveHook

__all__ = ["CollectiveHook"]
