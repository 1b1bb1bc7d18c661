"""Where tests find the tree, its generated files, and the recorded data that only some machines have."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
SUPPORT = TESTS / "support"
RECORDED = ROOT.parent / "shared" / "data"
"""Flight-recorder dumps and operation tables of real jobs; tests skip where the folder is absent."""
