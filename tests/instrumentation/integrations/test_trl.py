"""Fine-tuning with TRL's `SFTTrainer`, without a line of rankwatch."""

from __future__ import annotations

from typing import Any

import pytest

from support.frameworks.jobs import Job, run_cases

pytest.importorskip("trl")
pytest.importorskip("peft")
pytestmark = [pytest.mark.frameworks, pytest.mark.process]
_CASES = ("full", "lora", "packed")
_STEPS, _ACCUMULATION = [1, 2, 3, 4], 2


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Job, Any]]:
    return run_cases("trl_cases.py", tmp_path_factory.mktemp("cases"), *_CASES)


@pytest.mark.parametrize("case", _CASES)
def test_recorded(case: str, cases: dict[str, tuple[Job, Any]]) -> None:
    """Steps, tokens without padding, the loss with the Trainer's rule for tokens, norm, evaluations and
    checkpoints, for all weights, for LoRA, and with several texts in a row."""
    job, saw = cases[case]
    groups = [saw["seen"][at : at + _ACCUMULATION] for at in range(0, len(saw["seen"]), _ACCUMULATION)]
    assert job.steps(0) == _STEPS
    assert job.now(0).target_steps == len(_STEPS)
    losses = [loss for _, loss in job.scalars(0, "loss")]
    assert losses == pytest.approx([sum(loss for loss, _ in each) for each in groups], rel=1e-6)
    assert losses == pytest.approx(saw["logged"], abs=1e-3)
    assert job.work(0, "tokens") == [
        (number, sum(tokens for _, tokens in each)) for number, each in zip(_STEPS, groups, strict=True)
    ]
    assert [number for number, _ in job.scalars(0, "gradient_norm")] == _STEPS
    assert len(job.phases(0, "evaluation")) == 2
    assert job.checkpoints(0, "save") == [(2, True), (4, True)]
    for phase in ("data_wait", "forward", "backward"):
        assert len(job.phases(0, phase)) == len(saw["seen"])
    assert len(job.phases(0, "optimizer")) == len(_STEPS)
    assert job.now(0).errors == 0
