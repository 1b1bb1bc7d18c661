"""On a small file system, as a container's /dev/shm of 64 MiB, black boxes leave room for the training."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.processes.mounts import run_with_tmpfs

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system"),
]

MIB = 1 << 20
JOBS = """
import json, os, pathlib, subprocess, sys
RANK = '''
import os, rankwatch
run = rankwatch.start(collectives=False, flight_recorder=False)
with run.step():
    print("a line")
print(type(run).__name__, end=" ", flush=True)
os._exit(1)
'''
boxes = pathlib.Path(os.environ["RANKWATCH_DIR"])
names, ranks = os.environ["JOBS"].split(), int(os.environ["RANKS"])
errors = ""
for attempt, name in enumerate(names):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={
                **os.environ, "RANKWATCH_RUN": name, "RANKWATCH_ATTEMPT": str(attempt), "RANK": str(rank),
                "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
            },
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]
    errors = "".join(each.communicate()[1] for each in started)  # of the last attempt
found = os.statvfs(boxes)
result = {
    "errors": errors,
    "used": (found.f_blocks - found.f_bfree) * found.f_frsize,
    "files": sorted(str(each.relative_to(boxes)) for each in boxes.rglob("*.*")),
}
try:
    os.posix_fallocate(os.open(boxes / "batch", os.O_RDWR | os.O_CREAT), 0, int(os.environ["BATCH"]))
    result["fits"] = True
except OSError:
    result["fits"] = False
print(json.dumps(result))
"""


def jobs(directory: Path, size: str, ranks: int, names: str, *, batch: int = MIB) -> dict[str, object]:
    """The state of a file system of this size after jobs of these names have run there one by one."""
    variables = {"JOBS": names, "RANKS": str(ranks), "BATCH": str(batch), "RANKWATCH_LOG_LINES": "1"}
    done = run_with_tmpfs(directory, f"size={size}", JOBS, **variables)
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_container(tmp_path: Path) -> None:
    """Four ranks and three restarts in 64 MiB: a batch of 56 MiB, which fits without us, still fits. Neither
    lines nor earlier boxes are kept, and one rank says what to set."""
    found = jobs(tmp_path, "64m", 4, "job job job job", batch=56 * MIB)
    assert found["fits"]
    assert found["used"] <= 4 * MIB
    assert [each for each in found["files"] if "lines" in each or "earlier" in each] == []
    assert len([each for each in found["files"] if each.endswith(".blackbox")]) == 4
    assert found["errors"].count("rankwatch keeps 7040 records of each rank") == 1
    assert "--shm-size" in found["errors"]


def test_other_runs(tmp_path: Path) -> None:
    """Each run has a name of its own where no launcher gives one. Boxes of the runs before go, the oldest
    first; without an agent they would stay for a day."""
    found = jobs(tmp_path, "64m", 4, "one two three four five")
    assert found["used"] <= 4 * MIB
    assert {each.partition("/")[0] for each in found["files"]} >= {"four", "five"}
    assert "one/0.blackbox" not in found["files"]


def test_large_file_system(tmp_path: Path) -> None:
    """Where there is room, everything is kept as ever."""
    found = jobs(tmp_path, "1g", 2, "job job")
    assert {"job/0.lines", "job/0.lines-before", "job/earlier/0-0.blackbox"} <= {*found["files"]}
    assert found["errors"] == ""


def test_too_small(tmp_path: Path) -> None:
    """Too little for a useful ring is no reason to take what the training needs: nothing is recorded."""
    found = jobs(tmp_path, "8m", 4, "job")
    assert found["files"] == []
    why = "which is too little for 4 ranks beside the training; give the container"
    assert found["errors"].count(why) == 4
    assert "RANKWATCH_DIR" in found["errors"]
