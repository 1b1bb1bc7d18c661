"""Loops that do what an ordinary loop does not, below `rankwatch run`: they cannot notice it.

`test_zero_code_loops.py` runs some of them beside the ordinary loops.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from support.loops.recorded import Recorded, recorded
from support.loops.running import run_command, zero_code

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[1] / "support" / "loops" / "hostile.py"
STEPS = {
    "steps_in_a_thread": 6,
    "trains_in_a_thread": 6,
    "fork_loader": 6,
    "forkserver_loader": 6,
    "persistent_loader": 6,
    "compiled_model": 6,
    "compiled_update": 6,
    "compiled_whole_step": 6,
    "pickled_objects": 7,
    "custom_loader": 6,
    "closure": 6,
    "strange_losses": 6,
    "failing_user_code": 6,
    "patched_by_others": 6,
    "replaced_by_others": 24,
    "starts_rankwatch_itself": 6,
    "python_helper": 6,
}
ENDS = {
    "ends_in_order": "finished",
    "ends_by_exception": "failed",
    "ends_by_sys_exit": "failed",
    "ends_by_builtin_exit": "failed",
    "ends_by_os_exit": "",
    "ends_by_sigterm": "",
    "ends_by_own_sigterm_handler": "failed",
    "ends_by_sigint": "interrupted",
}
OTHERS = ("never_steps", "two_threads")


class Both(NamedTuple):
    """The same cases without rankwatch and with it."""

    bare: subprocess.CompletedProcess[str]
    recording: subprocess.CompletedProcess[str]
    boxes: dict[str, Recorded]
    """By the name of the case."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """One process for each way, both at once. Each case runs in a child that it forks, a run of its own."""
    directory = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, str(SCRIPT), *STEPS, *ENDS, *OTHERS]
    variables = {"RANKWATCH_DIR": str(directory / "boxes"), "RANKWATCH_SUMMARY": "0"}
    with ThreadPoolExecutor() as pool:
        bare, recording = pool.map(lambda each: run_command(each, variables), (command, zero_code(command)))
    return Both(
        bare, recording, {each.parent.name: recorded(each) for each in directory.glob("boxes/*/*.blackbox")}
    )


def test_same_output(both: Both) -> None:
    """Losses, compiled graphs, exceptions, pickles and each status are those of the bare script."""
    assert both.bare.returncode == 0, both.bare.stderr
    assert both.bare.stdout.count("status") == len({*STEPS, *ENDS, *OTHERS})
    assert (both.recording.stdout, both.recording.returncode) == (both.bare.stdout, 0)


@pytest.mark.parametrize(("case", "steps"), STEPS.items())
def test_steps(case: str, steps: int, both: Both) -> None:
    """Steps are exact, and nothing of ours fails."""
    box = both.boxes[case]
    assert (box.steps_completed, box.ended_by, box.errors) == (steps, "finished", 0)


@pytest.mark.parametrize(("case", "ended_by"), ENDS.items())
def test_end(case: str, ended_by: str, both: Both) -> None:
    """The black box knows how the script has ended. It is there if the first step was the last one, too."""
    assert both.boxes[case].ended_by == ended_by


def test_no_training(both: Both) -> None:
    """A script that trains nothing leaves no file; the helpers of a rank leave none beside its own."""
    assert sorted(both.boxes) == sorted({*STEPS, *ENDS, "two_threads"})


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([sys.executable, "-m", "hostile", "ends_in_order"], id="module"),
        pytest.param(["bash", "-c", f'"{sys.executable}" {SCRIPT.name} ends_in_order; exit $?'], id="bash"),
        pytest.param(
            [
                *(sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"),
                *("--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"),
                *(SCRIPT.name, "ends_in_order"),
            ],
            id="accelerate",
            marks=pytest.mark.frameworks,
        ),
    ],
)
def test_launcher(command: list[str], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Whatever starts the script, it has one black box, and nobody else."""
    if request.node.get_closest_marker("frameworks"):
        pytest.importorskip("accelerate")
    variables = {"RANKWATCH_DIR": str(tmp_path), "RANKWATCH_SUMMARY": "0"}
    done = run_command(zero_code(command), variables, cwd=SCRIPT.parent)
    assert done.returncode == 0, done.stderr
    assert [recorded(each).steps_completed for each in tmp_path.glob("*/*.blackbox")] == [6]
