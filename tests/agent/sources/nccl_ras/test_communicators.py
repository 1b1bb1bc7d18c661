"""The health of communicators over several answers of RAS."""

from __future__ import annotations

from collections.abc import Sequence

from rankwatch_agent.sources.nccl_ras.communicators import (
    STUCK_POLLS,
    SUSPECT_POLLS,
    HealthTracker,
    Reason,
    Report,
    State,
)
from rankwatch_agent.sources.nccl_ras.json_form import parse_json
from rankwatch_agent.sources.nccl_ras.text_form import parse_text
from support.sources.nccl_ras import Comm, Gone, json_status, text_status

ROW = "    0         1         4         8        32        32   RUNNING  MISMATCH\n"
COUNTS = (
    "#0-0 (a) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
    "  31 ranks have launched up to operation 7\n  Rank 3 has launched up to operation 6 -- GPU 3\n\n"
)


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


def test_constant_difference_is_a_desync() -> None:
    """Suspect first, stuck after several answers."""
    found = course([report(Comm((7, 6, 7)))] * 8)
    assert found[1] == (State.UNKNOWN, Reason.DESYNC)
    assert found[SUSPECT_POLLS:STUCK_POLLS] == [(State.SUSPECT, Reason.DESYNC)] * 3
    assert found[STUCK_POLLS:] == [(State.STUCK, Reason.DESYNC)] * 3


def test_equal_constant_counts_are_below_launch() -> None:
    """All ranks have launched it and nothing moves. RAS itself reports OK (NVIDIA/nccl#1730)."""
    found = course([report(Comm((7, 7)), Comm((2, 2), name=2))] * 8)
    assert found[STUCK_POLLS:] == [(State.STUCK, Reason.BELOW_LAUNCH)] * 3
    assert found[STUCK_POLLS - 1] == (State.SUSPECT, Reason.BELOW_LAUNCH)


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
    assert (found[0].communicator.name[-1], found[0].state, found[0].reason) == (
        "2",
        State.SUSPECT,
        Reason.DESYNC,
    )


def test_worst_state_wins() -> None:
    """Dead processes and NCCL errors need no second answer."""
    error = {0: {"async_error": 6}}
    assert course([report(Comm((7,), gone=(Gone(1, dead=True),), status=error))]) == [
        (State.DEAD, Reason.PROCESS_DEAD)
    ]
    assert course([report(Comm((7, 6), status=error))]) == [(State.ERROR, Reason.NCCL_ERROR)]
    assert course([report(Comm((7,), gone=(Gone(1),)))]) == [(State.SUSPECT, Reason.UNRESPONSIVE)]


def test_ending_communicator_is_never_stuck() -> None:
    """Its counts stay the same because the run is over."""
    ending = {0: {"destroy_flag": True}, 1: {"finalize_called": True}}
    assert set(course([report(Comm((7, 7), status=ending))] * 9)) == {(State.UNKNOWN, Reason.ENDING)}


def test_stuck_start() -> None:
    """Ranks wait for each other to initialise."""
    starting = {0: {"init_state": 7}, 1: {"init_state": 7}}
    found = course([report(Comm((0, 0), status=starting))] * 7)
    assert found[-1] == (State.STUCK, Reason.STARTING)


def test_text_form_cannot_show_that_the_job_stands() -> None:
    """It has no launches of communicators whose ranks agree."""
    agreeing = "    1         4         4         8        16        32   RUNNING      OK\n"
    found = course([parse_text(text_status(ROW + agreeing, "", COUNTS))] * 9)
    assert found[-1] == (State.SUSPECT, Reason.DESYNC)
    found = course([parse_text(text_status(ROW, "", COUNTS))] * 9)
    assert found[-1] == (State.STUCK, Reason.DESYNC)


def test_order() -> None:
    """The worst first, then the largest: a limit on the export drops the least important."""
    tracker = HealthTracker()
    comms = (Comm((5, 5), name=1), Comm((5, 5, 5), name=2), Comm((5,), name=3, gone=(Gone(1, dead=True),)))
    assert [each.communicator.name[-1] for each in tracker.update(report(*comms))] == ["3", "2", "1"]


def test_order_of_states() -> None:
    """The order of SGLang and others."""
    assert list(State) == ["healthy", "unknown", "suspect", "stuck", "error", "dead"]
