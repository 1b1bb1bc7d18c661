"""The order of operations in a simulated step."""

from __future__ import annotations

from rankwatch_diagnosis.simulation.program import Transfer, in_order, one_forward_one_backward, plan
from rankwatch_diagnosis.simulation.shape import JobShape


def order(stage: int, stages: int, microbatches: int) -> str:
    return " ".join(
        f"{operation[0].upper()}{microbatch}"
        for operation, microbatch in one_forward_one_backward(stage, stages, microbatches)
    )


def test_schedule() -> None:
    """One forward, one backward after the warm-up: the figure of the paper with four stages."""
    assert order(0, 4, 4) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert order(1, 4, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert order(2, 4, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert order(3, 4, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_schedule_of_few_microbatches() -> None:
    """The first stages run all forwards first."""
    assert order(0, 4, 2) == "F0 F1 B0 B1"


def test_turns() -> None:
    """Every operation has one, and every message is sent before it is received."""
    program = plan(JobShape(data_parallel=2, pipeline_parallel=4, tensor_parallel=2, microbatches=6))
    turns = in_order(program)
    assert sorted(turns) == [
        (stage, index) for stage, each in enumerate(program) for index in range(len(each))
    ]
    sent = set()
    for stage, index in turns:
        planned = program[stage][index]
        if planned.transfer is Transfer.SEND:
            sent.add(planned.message)
        if planned.transfer is Transfer.RECEIVE:
            sent.remove(planned.message)
    assert not sent


def test_world_turns() -> None:
    """The turns of the job-wide collective follow each other."""
    program = plan(JobShape(data_parallel=1, pipeline_parallel=3, microbatches=2))
    transfers = [program[stage][index].transfer for stage, index in in_order(program)]
    first = transfers.index(Transfer.WORLD)
    assert transfers[first : first + 3] == [Transfer.WORLD] * 3
    assert transfers.count(Transfer.WORLD) == 3


def test_single_rank() -> None:
    """It does not communicate."""
    (stage,) = plan(JobShape(data_parallel=1))
    assert {each.transfer for each in stage} == {Transfer.NONE}
