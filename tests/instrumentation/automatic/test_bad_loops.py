"""Real loops with something in the way of zero-code recording: they train on, a line says what is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch.conventions.vocabulary import Capability, Unseen
from support.jobs.forked_ranks import shared_ranks
from support.training.blackbox import box, now

pytest.importorskip("torch")
pytestmark = pytest.mark.process

LOOP = """
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2):
    loss = (model(batch) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    STEP
print(loss.item())
"""
IMPORT = "import functools, torch\n"
FOREIGN = """
calls = []
def foreign(owner, name):
    original = getattr(owner, name)
    @functools.wraps(original)
    def call(*args, **kwargs):
        calls.append(name)
        return original(*args, **kwargs)
    setattr(owner, name, call)
def all_of_them():
    foreign(torch.Tensor, "backward")
    foreign(torch.nn.Module, "__call__")
    foreign(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__")
    foreign(torch.optim.SGD, "step")
"""
INSTALL = "from rankwatch.automatic import installing; installing.install()\n"
OLD = "import sys; del sys.modules['torch.optim.optimizer'].register_optimizer_step_post_hook\n"
OURS_FAIL = """
from rankwatch.automatic.loop import Loop
def fail(*args): raise KeyError("ours")
Loop.backward_began = Loop.fetch_began = fail
"""


def train(directory: Path, before: str, *, step: str = "optimizer.step()", zero_code: bool = True) -> str:
    """Run the loop; returns what it prints on standard output and error."""
    directory.mkdir(exist_ok=True)
    log, job = directory / "log", ["-c", before + LOOP.replace("STEP", step)]
    environ = {**os.environ, "RANKWATCH_DIR": str(directory), "RANKWATCH_RUN": "r"}
    assert shared_ranks(recorded=zero_code).run(job, environ, ranks=1, log=log) == [0], log.read_text()
    return log.read_text()


@pytest.mark.parametrize("order", ["before", "after"])
def test_foreign_patches(order: str, tmp_path: Path) -> None:
    """A library that replaces the same functions, before ours or on top of them: both act."""
    install = "all_of_them()\n" + INSTALL if order == "before" else INSTALL + "all_of_them()\n"
    ended = "print(sorted({each: calls.count(each) for each in calls}.items()))\n"
    code = IMPORT + FOREIGN + install + f"import atexit; atexit.register(lambda: {ended.strip()})\n"
    printed = train(tmp_path, code, zero_code=False)
    assert "('backward', 6)" in printed and "('step', 6)" in printed
    assert "not visible" not in printed
    found = now(box(tmp_path))
    assert (found.steps_completed, found.errors) == (6, 0), printed
    seen = {each for each, why in found.capabilities.items() if why is None}
    assert {Capability.STEPS, Capability.DATA_WAIT, Capability.BACKWARD, Capability.LOSS} <= seen


def test_old_torch(tmp_path: Path) -> None:
    """Without torch's hooks for optimizers there are no steps, and the reason is said."""
    printed = train(tmp_path, IMPORT + OLD + INSTALL, zero_code=False)
    assert f"rankwatch: not visible: steps, because {Unseen.TOO_OLD.sentence}" in printed
    assert now(box(tmp_path)).capabilities[Capability.STEPS] is Unseen.TOO_OLD


def test_loop_that_never_steps(tmp_path: Path) -> None:
    printed = train(tmp_path, IMPORT, step="pass")
    assert f"not visible: steps, because {Unseen.NOT_CALLED.sentence}" in printed
    assert now(box(tmp_path)).steps_completed == 0


def test_own_failures(tmp_path: Path) -> None:
    """Hooks of ours that fail are counted, leave the loop alone, and say what is lost."""
    printed = train(tmp_path, IMPORT + INSTALL + OURS_FAIL, zero_code=False)
    without = train(tmp_path / "without", IMPORT, zero_code=False)
    assert without.strip() in printed.splitlines()
    assert Unseen.HOOK_FAILED.sentence in printed
    found = now(box(tmp_path))
    assert found.steps_completed == 6 and found.errors >= 3
