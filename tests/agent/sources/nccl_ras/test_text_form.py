"""The text form of RAS's answer, in the words of NCCL 2.24 to 2.28."""

from __future__ import annotations

import pytest

from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.sources.nccl_ras.communicators import Absence, Communicator
from rankwatch_agent.sources.nccl_ras.text_form import MAX_TEXT_BYTES, parse_text
from support.sources.nccl_ras import text_status

ROW = "    0         1         4         8        32        32   RUNNING  {}\n"
COUNTS = """#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllGather operation counts
  30 ranks have launched up to operation 641
  2 ranks have launched up to operation 640
  Rank 12 -- GPU 4 managed by process 323032 on node 10.137.190.124
  Rank 13 -- GPU 5 managed by process 323033 on node 10.137.190.124

"""


def only(errors: str, warnings: str = "", row: str = ROW.format("MISMATCH")) -> Communicator:
    (found,) = parse_text(text_status(row, errors, warnings)).communicators
    return found


def test_even_communicators_are_counted() -> None:
    """The text says nothing else of them."""
    rows = ROW.format("OK") + "    1         8         4         1-2         4        32   RUNNING      OK\n"
    report = parse_text(text_status(rows))
    assert (report.communicators, report.unnamed, report.pids) == ((), 9, frozenset())


def test_text_ranks_behind_are_named() -> None:
    """Where RAS prints them, being the smaller part."""
    found = only("", COUNTS)
    assert (found.name, found.size, found.uneven, found.spread) == ("fa93daea854b060b", 32, True, 1)
    assert (found.behind, [each[:2] for each in found.named_behind]) == (2, [(12, 1), (13, 1)])


def test_ranks_ahead_are_not_named() -> None:
    """The minority that RAS prints may be ahead (NVIDIA/nccl#1911)."""
    found = only("", COUNTS.replace("operation 640", "operation 642"))
    assert (found.behind, found.named_behind) == (30, ())


def test_line_of_one_rank() -> None:
    """Also one that has launched nothing."""
    lines = (
        "#0-0 (1) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  31 ranks have launched up to operation 7\n"
        "  Rank 3 has not launched any operations -- GPU 3 managed by process 7 on node 10.0.0.1\n\n"
    )
    found = only("", lines)
    assert (found.name, found.spread) == ("0000000000000001", 7)
    assert [each.rank for each in found.named_behind] == [3]


def test_several_kinds_of_collectives() -> None:
    """NCCL 2.24 knows only one, `collective`."""
    second = COUNTS.partition("\n")[2].replace("AllGather", "collective").replace("641", "700")
    found = only("", COUNTS + second)
    assert (found.spread, [each[:2] for each in found.named_behind]) == (60, [(12, 60), (13, 60)])


def test_text_missing_ranks() -> None:
    """INCOMPLETE while they are unresponsive, DEAD after a minute."""
    silent = (
        "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 3487984 on node 172.16.64.213 managing GPU 5\n\n"
        "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        "  Rank 21 -- GPU 5 managed by process 3487984 on node 172.16.64.213\n\n"
    )
    report = parse_text(
        text_status(ROW.format("INCOMPLETE"), silent, "TIMEOUT\n  Encountered 2 communication timeouts\n")
    )
    assert report.processes_missing[Absence.UNRESPONSIVE] == 1
    found = report.communicators[0]
    assert (found.size, found.missing, found.absences) == (32, 1, {Absence.UNRESPONSIVE})
    assert [each.rank for each in found.named_missing] == [21]
    dead = silent.replace(
        "INCOMPLETE\n  Missing communicator data from 1 job process",
        "DEAD\n  1 job process is considered dead (unreachable via the RAS network)",
        1,
    )
    report = parse_text(text_status(ROW.format("INCOMPLETE"), dead))
    assert report.processes_missing == {Absence.DEAD: 1, Absence.UNRESPONSIVE: 0}
    assert report.communicators[0].absences == {Absence.DEAD}


def test_errors_and_uneven_status() -> None:
    """Of one communicator under two headings."""
    error = "#0-0 (a) ERROR\n  Asynchronous error on 1 rank\n  Rank 2 reported System error -- GPU 2\n\n"
    status = (
        "#0-0 (a) MISMATCH\n  Communicator ranks have different status\n  30 ranks have status RUNNING\n"
        "  2 ranks have status NOCOMM\n  Rank 4 -- GPU 4 managed by process 4 on node 10.0.0.1\n"
        "  Rank 5 -- GPU 5 managed by process 5 on node 10.0.0.1\n"
    )
    found = only(error, status)
    assert (found.failed, found.uneven, found.missing, found.absences) == (True, True, 2, {Absence.LEFT})
    assert (found.spread, found.named_missing) == (None, ())


def test_text_fingerprint() -> None:
    """It changes with the counts, not with the time of the answer."""
    assert only("", COUNTS).fingerprint == only("", COUNTS).fingerprint
    assert only("", COUNTS).fingerprint != only("", COUNTS.replace("640", "639")).fingerprint


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello\n",
        text_status(ROW.format("OK")).partition(b"Warnings")[0],
        text_status(ROW.format("OK"), version="x" * 99),
        b"\xff" * 1000,
        b" " * (MAX_TEXT_BYTES + 1),
    ],
)
def test_invalid_or_cut_off_answers(body: bytes) -> None:
    """A cut-off answer may lack the very communicator that is stuck."""
    with pytest.raises(CollectError, match="could not read the answer of NCCL RAS"):
        parse_text(body)


@pytest.mark.parametrize(
    "warnings",
    [
        "#9-0 (aa) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n",
        "#0-0 (zz) MISMATCH\n  Rank 3 -- x\n",
        "  Rank 3 -- GPU\n  3 ranks have launched up to operation 99999999999999999999\n",
        "#0-0 (aa) WHAT\n",
    ],
)
def test_unknown_lines(warnings: str) -> None:
    """They name no communicator."""
    assert parse_text(text_status(ROW.format("MISMATCH"), "", warnings)).communicators == ()
