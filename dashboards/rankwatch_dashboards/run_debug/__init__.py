"""The dashboard for one run: what an SRE opens from an alert. One row per file."""

from rankwatch_dashboards.run_debug.board import ROWS, run_debug

__all__ = ["ROWS", "run_debug"]
