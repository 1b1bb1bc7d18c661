"""Goodput from the boxes of a node, with and without what the agent has saved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankwatch.blackbox import layout
from rankwatch.conventions.states import GoodputState
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.collector import RanksCollector
from rankwatch_agent.training.goodput.run_ledgers import ACCOUNT
from rankwatch_cli.main import main
from rankwatch_diagnosis.goodput.from_boxes import read_folder

pytestmark = pytest.mark.process

CODE = """
import os, sys, time, rankwatch
first, last = map(int, sys.argv[1:])
run = rankwatch.start(run="job")
for step in range(first, last):
    with run.step(step), run.phase("forward"):
        time.sleep(0.01)
if os.environ.get("FINISH"):
    run.finish()
else:
    run.scalar("loss", 1.0)
    time.sleep(0.1)  # in which it dies
    os._exit(1)
"""


def attempt(directory: Path, steps: tuple[int, int], **variables: str) -> None:
    """A process that makes these steps and is gone, or finishes."""
    env = {**os.environ, "RANKWATCH_DIR": str(directory), **variables}
    subprocess.run([sys.executable, "-c", CODE, *map(str, steps)], env=env, check=False, capture_output=True)


def states(seconds: dict[GoodputState, float] | dict[str, float]) -> set[str]:
    """Those in which time was spent."""
    return {str(state) for state, value in seconds.items() if value > 0.0}


def numbers(directory: Path, account: Path | None = None) -> Sequence[tuple[int, int | None, int | None]]:
    """Number, first and last step of each attempt."""
    return [
        (each.number, each.first_step, each.last_step) for each in read_folder(directory, account).attempts
    ]


def test_attempts(tmp_path: Path) -> None:
    """Earlier attempts count by the boxes that are kept of them."""
    attempt(tmp_path, (0, 30))
    attempt(tmp_path, (20, 40))
    attempt(tmp_path, (40, 50), FINISH="1")
    found = read_folder(tmp_path / "job")
    assert numbers(tmp_path / "job") == [(0, 0, 29), (1, 20, 39), (2, 40, 49)]
    assert states(dict(found.seconds)) >= {"startup", "productive", "replayed", "down"}
    assert (found.attempts[0].ended_how, found.attempts[2].ended_how) == ("lost", "finished")
    first, last = found.attempts[0].started, found.attempts[2].ended
    assert found.requested == pytest.approx(last - first, rel=1e-3)
    assert found.unseen == ()


def test_more_attempts_than_are_kept(tmp_path: Path) -> None:
    """What no box holds any more is said, and the agent's account has it."""
    attempt(tmp_path, (0, 10))
    agent = RanksCollector(directory=tmp_path, state_directory=tmp_path / "life")
    for number in range(1, 6):
        agent.collect()
        attempt(tmp_path, (10 * number, 10 * number + 10))
    found = read_folder(tmp_path / "job")
    assert [each.number for each in found.attempts] == [2, 3, 4, 5]
    assert any("the first 2 attempts" in each for each in found.unseen)
    agent.collect()
    agent.ledgers.save()
    whole = read_folder(tmp_path / "job", tmp_path / "life" / ACCOUNT)
    assert [each.number for each in whole.attempts] == [0, 1, 2, 3, 4, 5]
    assert whole.requested > found.requested
    again = read_folder(tmp_path / "job", tmp_path / "life" / ACCOUNT)
    assert again.seconds == whole.seconds


def test_attempts_far_apart(tmp_path: Path) -> None:
    """The first few between them are named. Nobody counts them all."""
    attempt(tmp_path, (0, 10))
    box = tmp_path / "job" / "0.blackbox"
    shutil.copy(box, box.with_name("1.blackbox"))
    with box.open("r+b") as file:
        file.seek(layout.STARTED_BY_OFFSET)
        file.write(b"\xff" * 4)
    tracemalloc.start()
    try:
        found = read_folder(tmp_path / "job")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert any("attempts 1, 2, 3, 4, 5, 6, 7, 8: " in each for each in found.unseen)
    assert peak < 10 << 20


SPAN = {"started": 1.0, "last": 2.0, "world_size": 1, "first_step": 0, "highest_step": 3}
IMPOSSIBLE = (
    *(
        {"1": {**SPAN, name: value}}
        for name, value in (("highest_step", None), ("started", []), ("last", "x"))
    ),
    *({number: SPAN} for number in ("9" * 30, "-1")),
)
"""Attempts of an account, by number."""


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"format": 1, "runs": {"job": 3}}', '{"format": 9, "runs": {}}'),
        *('{"format": 1, "runs": {"job": []}}', '{"format": 1, "runs": {"job": [1, {}]}}'),
        *(
            json.dumps({"format": 1, "runs": {"job": [1.0, {"attempts": each, "ranks": {}}]}})
            for each in IMPOSSIBLE
        ),
    ],
)
def test_broken_account(tmp_path: Path, content: str) -> None:
    """An account that is of no use is left out."""
    attempt(tmp_path, (0, 10), FINISH="1")
    (tmp_path / ACCOUNT).write_text(content)
    assert numbers(tmp_path / "job", tmp_path / ACCOUNT) == [(0, 0, 9)]


def test_broken_box(tmp_path: Path) -> None:
    """A box that cannot be read is counted; with none left it is one sentence."""
    attempt(tmp_path, (0, 10))
    attempt(tmp_path, (10, 20), FINISH="1")
    earlier, last = tmp_path / "job" / "earlier" / "0-0.blackbox", tmp_path / "job" / "0.blackbox"
    for box in (earlier, last):
        box.chmod(0o644)
    earlier.write_bytes(b"garbage")
    found = read_folder(tmp_path / "job")
    assert [each.number for each in found.attempts] == [1]
    assert any("could not be read" in each for each in found.unseen)
    last.write_bytes(b"garbage")
    with pytest.raises(UserError, match="none of the 2 black boxes"):
        read_folder(tmp_path / "job")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rankwatch goodput` without a server, and one sentence where there is nothing."""
    attempt(tmp_path, (0, 10), FINISH="1")
    assert main(["goodput", str(tmp_path / "job"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert states(found["rank_seconds"]) >= {"startup", "productive"}
    assert main(["goodput", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["goodput", "--prometheus", "http://127.0.0.1:1"]) == 2
    assert "needs the name of a run" in capsys.readouterr().err
