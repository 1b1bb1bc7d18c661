"""Steps from records that arrive in any order, honest or not."""

from __future__ import annotations

from rankwatch_agent.training.steps import StepAssembler
from rankwatch_agent.training.timeouts import LearntTimeouts
from support.processes.lines import lines_run


def test_phases_of_the_far_future_are_not_looked_at_with_each_step() -> None:
    """A box that held 4,096 of them and many steps kept the agent busy for 15 s at each poll."""

    def lines(far: int) -> int:
        steps = StepAssembler(LearntTimeouts(), lambda _: None)
        for _ in range(far):
            steps.unsettled.phases.append((1e9, 1e9 + 1.0, "forward"))

        def take_steps() -> None:
            for number in range(200):
                steps.step(float(number), number + 0.5, number)

        taken = lines_run(take_steps)
        assert steps.steps == 199
        return taken

    assert lines(400) - lines(0) < 20 * 400, "each looked at a few times, not 200 times"


def test_phases_of_the_step_to_come_are_kept_for_it() -> None:
    """A step is settled when the next one arrives, whose phases arrived before."""
    steps = StepAssembler(LearntTimeouts(), lambda _: None)
    for number in range(3):
        steps.unsettled.phases.append((float(number), number + 0.25, "forward"))
        steps.step(float(number), number + 0.5, number)
    steps.settle(100.0, 100.0)
    assert steps.phase_seconds["forward"] == 0.75
    assert steps.section_seconds == {}


def test_pauses_between_steps_are_learnt_as_normal() -> None:
    """A slow loader that is not wrapped would look like a stall before each step; so would an evaluation
    that is not told."""
    progress = LearntTimeouts()
    steps = StepAssembler(progress, lambda _: None)
    for number in range(20):
        steps.step(10.0 * number, 10.0 * number + 1.0, number)
    assert progress.timeout(None) == 50.0


def test_a_told_checkpoint_between_steps_makes_no_step_longer() -> None:
    """It has a history of its own."""
    progress = LearntTimeouts()
    steps = StepAssembler(progress, lambda _: None)
    for number in range(20):
        steps.unsettled.phases.append((10.0 * number - 9.0, 10.0 * number, "checkpoint"))
        steps.step(10.0 * number, 10.0 * number + 1.0, number)
    assert progress.timeout(None) == 5.0
    assert progress.timeout("checkpoint") == 50.0
