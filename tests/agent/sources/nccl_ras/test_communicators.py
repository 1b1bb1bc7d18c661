"""The health of communicators over several answers of RAS."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rankwatch_agent.sources.nccl_ras.communicators import HealthTracker, Reason, Report, State
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_agent.sources.nccl_ras.text_form import parse_text
from support.sources.nccl_ras import Comm, Gone, json_status, text_status

ROW = "    0         1         4         8        32        32   RUNNING  MISMATCH\n"
AGREEING = "    1         4         4         8        16        32   RUNNING      OK\n"
COUNTS = (
    "#0-0 (a) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    "  31 ranks have launched up to operation 7\n  Rank 3 has launched up to operation 6 -- GPU 3\n\n"
)
FAILED = {0: {"async_error": 6}}
STARTING = {0: {"init_state": 7}, 1: {"init_state": 7}}


def report(*comms: Comm) -> Report:
    return parse_json(bytearray(json_status(*comms)))


def course(reports: Sequence[Report]) -> list[tuple[State, Reason]]:
    """State and reason of the worst communicator after each answer."""
    tracker = HealthTracker()
    return [(found.state, found.reason) for found in (tracker.update(each)[0] for each in reports)]


def test_moving_difference_is_healthy() -> None:
    """In a working run some rank is behind most of the time."""
    found = course([report(Comm((at, at + 1))) for at in range(10)])
    assert found == [(State.UNKNOWN, Reason.FIRST_ANSWER), *[(State.HEALTHY, Reason.MOVING)] * 9]


def text(*rows: str) -> Report:
    return parse_text(text_status("".join(rows), "", COUNTS))


@pytest.mark.parametrize(
    ("answer", "reason", "state"),
    [
        (report(Comm((7, 6, 7))), Reason.DESYNC, State.STUCK),
        (report(Comm((7, 7)), Comm((2, 2), name=2)), Reason.BELOW_LAUNCH, State.STUCK),
        (report(Comm((0, 0), status=STARTING)), Reason.STARTING, State.STUCK),
        (text(ROW), Reason.DESYNC, State.STUCK),
        (text(ROW, AGREEING), Reason.DESYNC, State.SUSPECT),
    ],
    ids=[
        "one rank is behind",
        "all have launched the same, and RAS itself reports OK (NVIDIA/nccl#1730)",
        "ranks wait for each other to initialise",
        "text form",
        "text form, which has no launches of communicators whose ranks agree",
    ],
)
def test_constant_answer(answer: Report, reason: Reason, state: State) -> None:
    """Suspect first, stuck after five unchanged answers."""
    states = [State.UNKNOWN, *[State.SUSPECT] * 3, *[state] * 3]
    assert course([answer] * 8)[1:] == [(each, reason) for each in states]


def test_launch_resets_the_state() -> None:
    """The count of unchanged answers starts again."""
    still, on = report(Comm((7, 6))), report(Comm((8, 6)))
    found = course([*[still] * 8, on, on])
    assert [each[0] for each in found[-3:]] == [State.STUCK, State.HEALTHY, State.UNKNOWN]


def test_idle_communicator() -> None:
    """Groups for evaluation stand still for hours."""
    tracker = HealthTracker()
    for at in range(9):
        found = {
            each.communicator.name[-1]: (each.state, each.reason)
            for each in tracker.update(report(Comm((at, at), name=1), Comm((4, 4), name=2)))
        }
    assert found == {"1": (State.HEALTHY, Reason.MOVING), "2": (State.HEALTHY, Reason.IDLE)}


def test_desync_in_a_moving_job_is_suspect() -> None:
    """A rank may wait at the next barrier while others work on, so it is never stuck."""
    tracker = HealthTracker()
    for at in range(12):
        found = tracker.update(report(Comm((at, at), name=1), Comm((5, 4), name=2)))
    worst = found[0]
    assert (worst.communicator.name[-1], worst.state, worst.reason) == ("2", State.SUSPECT, Reason.DESYNC)


@pytest.mark.parametrize(
    ("comm", "state", "reason"),
    [
        (Comm((7,), gone=(Gone(1, dead=True),), status=FAILED), State.DEAD, Reason.PROCESS_DEAD),
        (Comm((7, 6), status=FAILED), State.ERROR, Reason.NCCL_ERROR),
        (Comm((7,), gone=(Gone(1),)), State.SUSPECT, Reason.UNRESPONSIVE),
    ],
)
def test_worst_state_wins(comm: Comm, state: State, reason: Reason) -> None:
    """Dead processes and NCCL errors need no second answer."""
    assert course([report(comm)]) == [(state, reason)]


def test_ending_communicator_is_never_stuck() -> None:
    """Its counts stay the same because the run is over."""
    ending = {0: {"destroy_flag": True}, 1: {"finalize_called": True}}
    assert set(course([report(Comm((7, 7), status=ending))] * 9)) == {(State.UNKNOWN, Reason.ENDING)}


def test_order() -> None:
    """The worst first, then the largest: a limit on the export drops the least important."""
    tracker = HealthTracker()
    comms = (Comm((5, 5), name=1), Comm((5, 5, 5), name=2), Comm((5,), name=3, gone=(Gone(1, dead=True),)))
    assert [each.communicator.name[-1] for each in tracker.update(report(*comms))] == ["3", "2", "1"]
