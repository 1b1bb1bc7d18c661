"""The directory of job files, and the lines in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwatch_agent.runtime.errors import CollectError, NotApplicable
from rankwatch_agent.sources.attribution.slurm import GpuFile, gpu_files, parse_jobs, read_jobs


def test_files_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """A number is a GPU, two are an instance of it, and anything else is somebody else's."""
    for name in ("0", "12", "2.1", "README", "1.", ".1", "-1", "2.1.3", "٣", "1\n", "99999"):
        (tmp_path / name).write_text("")
    assert gpu_files(tmp_path) == [
        GpuFile(tmp_path / "0", 0, None),
        GpuFile(tmp_path / "12", 12, None),
        GpuFile(tmp_path / "2.1", 2, 1),
    ]


def test_a_map_that_is_not_there_is_absent_and_one_that_is_a_file_is_broken(tmp_path: Path) -> None:
    """The first may come with the first job."""
    with pytest.raises(NotApplicable):
        gpu_files(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(CollectError, match="Not a directory"):
        gpu_files(tmp_path / "file")


def test_a_directory_full_of_numbers_is_no_job_map(tmp_path: Path) -> None:
    """What a mistaken setting could lead to, such as /proc."""
    for number in range(1025):
        (tmp_path / str(number)).touch()
    with pytest.raises(CollectError, match="more than 1024 files"):
        gpu_files(tmp_path)


def test_each_line_is_a_job() -> None:
    """Arrays and heterogeneous jobs among them; blank lines are none."""
    assert parse_jobs("4711\n\n 4712_3 \n4713+1\n4711\n") == ["4711", "4712_3", "4713+1"]
    assert parse_jobs("") == []


@pytest.mark.parametrize(
    "text", ["two words\n", "x" * 65, 'a"b', "\x00", "é", "\n".join(map(str, range(300)))]
)
def test_lines_that_are_no_jobs_are_refused(text: str) -> None:
    """Each would become the value of a label."""
    with pytest.raises(ValueError):
        parse_jobs(text)


def test_what_is_no_plain_file_does_not_hang_the_reader(tmp_path: Path) -> None:
    """Nor does one that is far too long fill the memory."""
    os.mkfifo(tmp_path / "0")
    (tmp_path / "1").mkdir()
    (tmp_path / "2").write_text("1\n" * 40_000)
    for name in "012":
        with pytest.raises(CollectError, match=f"/{name}: it"):
            read_jobs(tmp_path / name)
    assert read_jobs(tmp_path / "3") == []
