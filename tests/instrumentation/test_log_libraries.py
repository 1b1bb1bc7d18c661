"""Lines of structlog and loguru carry the run's fields, written as docs/logs.md shows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankwatch.identity import rank_step_span, span_text, step_trace, trace_text
from support.paths import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "logs.md").read_text(), flags=re.DOTALL)


@pytest.mark.frameworks
@pytest.mark.process
@pytest.mark.parametrize("library", ["structlog", "loguru"])
def test_fields(tmp_path: Path, library: str) -> None:
    """Run, rank, step, trace and span of the step, and the caller's own value."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    (code,) = [each for each in BLOCKS if f"import {library}" in each]
    env = {**os.environ, "RANKWATCH_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    (line,) = (each for each in (done.stdout + done.stderr).splitlines() if each.startswith("{"))
    entry = json.loads(line)
    trace = step_trace("", "job", entry["attempt"], 100)
    assert (entry["run"], entry["rank"], entry["step"], entry["body"]) == ("job", 0, 100, "step done")
    assert entry["trace_id"] == trace_text(trace)
    assert entry["span_id"] == span_text(rank_step_span(trace, 0))
    assert entry.get("loss", entry.get("attributes", {}).get("extra", {}).get("loss")) == 2.5
