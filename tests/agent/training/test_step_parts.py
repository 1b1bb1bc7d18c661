"""What belongs to one step comes together, in whatever order the host and the GPU tell it."""

from __future__ import annotations

from rankwatch_agent.training.steps import StepAssembler
from rankwatch_agent.training.timeouts import LearntTimeouts
from rankwatch_agent.training.variation import OpenSteps, StepParts


def test_work_is_counted_to_the_step_whose_number_it_bears() -> None:
    """The next step's work arrives before this step is settled."""
    done: list[StepParts] = []
    steps = OpenSteps(done.append)
    steps.work(1, 100.0)
    steps.work(2, 300.0)
    steps.work(1, 50.0)
    steps.ended(1)
    steps.ended(2)
    steps.ended(3)
    assert [each.work for each in done] == [150.0, 300.0, 0.0]


def test_a_step_on_a_gpu_is_complete_once_the_gpu_reports_a_later_one() -> None:
    """The host ends a step long before the device does."""
    done: list[StepParts] = []
    steps = OpenSteps(done.append)
    steps.device_phase(1, "forward", 1.0)
    steps.of(1).local_seconds += 0.25
    steps.ended(1)
    steps.device_phase(1, "backward", 2.0)
    assert done == []
    steps.device_phase(2, "forward", 1.0)
    (step,) = done
    assert (step.local_seconds, step.forward_seconds, step.backward_seconds) == (3.25, [1.0], [2.0])


def test_steps_that_never_end_and_microbatches_without_end_are_bounded() -> None:
    """A hostile box may claim any number of either."""
    steps = OpenSteps(lambda _: None)
    for number in range(100_000):
        steps.work(number, 1.0)
        steps.device_phase(7, "forward", 1.0)
    assert len(steps._steps) == 64
    assert len(steps.of(7).forward_seconds) <= 4096


def test_a_checkpoint_in_a_step_makes_it_neither_late_nor_uneven() -> None:
    """Sections of a known kind are told apart from the step's own time."""
    steps = StepAssembler(LearntTimeouts(), lambda _: None)
    for number in range(40):
        start = 10.0 * number
        last = 5.0 if number == 30 else 0.0
        for phase in ("forward", "forward", "backward", "backward"):
            steps.unsettled.phases.append((start, start + 0.25, phase))
            start += 0.25
        if last:
            steps.unsettled.phases.append((start, start + last, "checkpoint"))
        steps.step(10.0 * number, start + last, number)
    steps.settle(1e6, 1e6)
    variation = steps.variation
    assert (variation.late_steps, variation.microbatches) == (0, 80)
    assert steps.local_seconds == 45.0
    assert max(variation.terms.values()) < 1e-12
