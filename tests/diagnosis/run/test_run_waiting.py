"""Whom a run waits for, where boxes of other nodes are not here or completions are not seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwatch.blackbox.layout import Now
from rankwatch.blackbox.writer import Writer
from rankwatch.conventions import PHASES
from rankwatch.identity import Identity
from rankwatch.members import members_text
from rankwatch_diagnosis.run.engine import diagnose_run
from rankwatch_diagnosis.simulation.hangs.black_boxes import write_hang_boxes
from rankwatch_diagnosis.simulation.hangs.fault import HangFault, HangKind, Plane
from rankwatch_diagnosis.simulation.hangs.job import HangJob, simulate_hang
from rankwatch_diagnosis.simulation.shape import JobShape


def hung(directory: Path, shape: JobShape, fault: HangFault) -> Path:
    """The directory of the run's boxes."""
    job = HangJob(shape=shape, fault=fault)
    write_hang_boxes(simulate_hang(job), job, directory, run="job")
    return directory / "job"


def test_ranks_of_other_nodes_are_not_blamed_for_having_no_box_here(tmp_path: Path) -> None:
    """The culprit is among them, and that is what is said; with --complete their absence is evidence."""
    run = hung(tmp_path, JobShape(data_parallel=16), HangFault(ranks=(12,)))
    for rank in range(8, 16):
        (run / f"{rank}.blackbox").unlink()
    verdict = diagnose_run(run)
    assert (verdict.state.value, verdict.ranks) == ("stalled", ())
    assert "of which there is no black box" in verdict.why
    assert verdict.hang.missing_ranks == tuple(range(8, 16))
    (run / "7.blackbox").unlink()
    for rank in (8, 9, 10, 11, 13, 14, 15):
        assert rank in diagnose_run(run).hang.missing_ranks


def test_one_box_that_is_missing_on_a_seen_node_is_evidence(tmp_path: Path) -> None:
    """Its neighbours wait for it, and nobody with a box explains that."""
    run = hung(tmp_path, JobShape(data_parallel=8), HangFault(ranks=(3,)))
    (run / "3.blackbox").unlink()
    verdict = diagnose_run(run)
    assert (verdict.state.value, verdict.ranks) == ("stalled", (3,))


def test_the_last_rank_of_a_node_is_evidence_only_where_all_boxes_are_here(tmp_path: Path) -> None:
    """Nothing else tells how many ranks a node holds."""
    run = hung(tmp_path, JobShape(data_parallel=8), HangFault(ranks=(7,)))
    (run / "7.blackbox").unlink()
    assert diagnose_run(run).ranks == ()
    assert diagnose_run(run, complete=True).ranks == (7,)


@pytest.mark.parametrize("culprit", range(8))
def test_a_rank_that_stops_in_a_pipeline_is_told_from_those_that_wait_in_receives(
    culprit: int, tmp_path: Path
) -> None:
    """A box does not tell the peer of a receive; whoever waits is no culprit."""
    shape = JobShape(data_parallel=2, pipeline_parallel=4)
    fault = HangFault(kind=HangKind.SLEEP, ranks=(culprit,), plane=Plane.PIPELINE, occurrence=2)
    assert diagnose_run(hung(tmp_path, shape, fault)).ranks == (culprit,)


def nccl_rank(directory: Path, rank: int, enqueued: int) -> None:
    """A box in which collectives are counted, and their ends are not seen."""
    identity = Identity(run="job", rank=rank, world_size=4, local_rank=rank, host="node")
    writer = Writer(directory, identity, phases=PHASES, capacity=256)
    integers = writer.integers
    integers[Now.GROUP_NAME] = writer.new_name("default_pg")
    integers[Now.GROUP_MEMBERS] = writer.new_name(members_text(range(4)))
    integers[Now.GROUP_SIZE] = 4
    integers[Now.GROUP_ENQUEUED] = enqueued
    integers[Now.GROUP_OPERATION] = writer.name_number("all_reduce")
    integers[Now.GROUPS] = 1
    writer.unlock()


def test_without_completions_the_rank_that_enqueued_least_is_waited_for(tmp_path: Path) -> None:
    """As with NCCL, whose ends only the flight recorder knows."""
    for rank, enqueued in enumerate((12, 12, 10, 12)):
        nccl_rank(tmp_path, rank, enqueued)
    verdict = diagnose_run(tmp_path)
    assert (verdict.hang.state.value, verdict.ranks) == ("hang", (2,))


def test_without_completions_equal_counts_say_nothing(tmp_path: Path) -> None:
    """A stall of devices or links looks like health."""
    for rank in range(4):
        nccl_rank(tmp_path, rank, 12)
    assert (diagnose_run(tmp_path).hang.state.value, diagnose_run(tmp_path).ranks) == ("ok", ())
