"""All readers of users' bytes."""

from __future__ import annotations

from .readers import checkpoints, files, node, runs, services

READERS = (*runs.READERS, *files.READERS, *checkpoints.READERS, *services.READERS, *node.READERS)
