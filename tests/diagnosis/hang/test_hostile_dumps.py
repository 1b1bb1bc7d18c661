"""Dumps that want to run code, fill memory or break the reader: named as broken, and nothing else happens."""

from __future__ import annotations

import json
import os
import pickle
import resource
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.training.flight_recorder.parse import BOM
from rankwatch_diagnosis.hang.dump_files import read_source
from rankwatch_diagnosis.hang.engine import diagnose
from rankwatch_diagnosis.hang.verdict import State
from rankwatch_diagnosis.hang.worker import bounded_memory, read_dumps
from support.diagnosis.hang_jobs import Shape, finished_job, hung_job, judged
from support.processes.users import ALICE
from support.training.recorder import entry, recorder_pickle, reply

pytestmark = pytest.mark.process


class _Runs:
    """Pickles to a call."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self._call


def payloads(mark: Path) -> dict[str, bytes]:
    """Pickles that would create the file `mark`, or worse."""
    command = f"touch {mark}"
    by_hand = command.encode()
    nested = b"\x80\x02" + b"(" + b"\x85" * 3_000_000 + b"K\x01s."
    return {
        "reduce": pickle.dumps({"entries": [_Runs(os.system, command)]}),
        "reduce of protocol 0": pickle.dumps(_Runs(os.system, command), protocol=0),
        "global": b"cos\nsystem\n(S'" + by_hand + b"'\ntR.",
        "inst": b"(S'" + by_hand + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'" + by_hand + b"'\no.",
        "newobj": b"\x80\x02cbuiltins\nexec\nX\x01\x00\x00\x001\x85\x81.",
        "stack global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x01x\x85R.",
        "build": b"\x80\x02}(X\x01\x00\x00\x00ai" + b"X\x01\x00\x00\x001ub.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"Psecret\n.",
        "truncated": recorder_pickle({"entries": [], "pg_status": {}})[:-20],
        "empty": b"",
        "text": b"no pickle at all",
        "no number": b"F1e999\x00\n.",
        "declared 10 GB of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 10 << 30) + b"x.",
        "declared 10 GB of text": b"\x80\x04\x8d" + struct.pack("<Q", 10 << 30) + b"x.",
        "declared frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        "memo bomb": b"\x80\x02Nr\xff\xff\xff\xff.",
        "memo bomb as text": b"Np99999999999\n.",
        "deep key": b"\x80\x02}(" + b")" + b"\x85" * 3_000_000 + b"Nu.",
        "deep tuple": nested,
        "json too deep": b'{"entries": ' + b"[" * 500_000,
    }


CALL = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Dumps of a job in which rank 5 sleeps."""
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    for rank, document in hung_job(Shape(4, 1, 2), 5, 4).dumps().items():
        (dumps / f"_dump_{rank}").write_bytes(recorder_pickle(document))
    return dumps


def test_hostile_dump_is_not_executed(directory: Path) -> None:
    """Nothing in a hostile pickle is executed, and the good dumps beside it still count."""
    mark = directory.parent / "executed"
    good = {rank: directory / f"_dump_{rank}" for rank in range(8)}
    bad = dict(enumerate(payloads(mark).items(), 100))
    paths = {rank: directory.parent / f"{rank}" for rank in bad}
    for rank, (_, data) in bad.items():
        paths[rank].write_bytes(data)
    reading = read_dumps({**good, **paths}, deadline_seconds=20.0)
    assert not mark.exists()
    accepted = [bad[each.rank][0] for each in reading.snapshots if each.rank in bad]
    assert accepted == []
    assert set(reading.broken) == set(paths)
    assert not any("\n" in each for each in reading.broken.values())
    assert diagnose(reading.snapshots).ranks == (5,)


def test_dump_beyond_its_limits(directory: Path) -> None:
    """A number in a pickle asks for a gigabyte, and a text of a hundred bytes is a key hashed for years."""
    good = (directory / "_dump_2").read_bytes()
    (directory / "_dump_2").write_bytes(b"\x80\x02Nr\xff\xff\xff\x030" + good[2:])
    (directory / "_dump_3").write_bytes(b"\x80\x02}(N" + b"2\x86" * 60 + b"Nu.")
    reading = read_dumps({rank: directory / f"_dump_{rank}" for rank in range(2, 5)})
    assert reading.broken == {
        2: "no usable pickle: MemoryError",
        3: "it broke the process that read it, or took too long",
    }
    assert [each.rank for each in reading.snapshots] == [4]


@pytest.mark.parametrize(
    ("odd", "state"),
    [
        ({"input_dtypes": ["", "Float"]}, State.INCONCLUSIVE),
        ({"output_sizes": [], "input_dtypes": ["-> 5", "Float"], "output_dtypes": []}, State.DESYNC),
    ],
    ids=["empty type", "type like an arrow"],
)
def test_calls_that_read_the_same(odd: dict[str, Any], state: State) -> None:
    """Calls that do not fit may have the same text. An empty type is none, and others are told apart."""
    plain = {name: [[5]] if "sizes" in name else ["Float"] for name in CALL}
    calls = (plain, plain, {**plain, **odd})
    documents = [reply(entry(0, **each), enqueued=1, ranks="[0, 1, 2]") for each in calls]
    verdict = judged(dict(enumerate(documents)))
    assert verdict.state is state
    assert json.dumps(verdict.evidence)


def test_broken_dump_is_missing(directory: Path) -> None:
    """A broken dump counts as missing and is named, with the reason."""
    (directory / "_dump_2").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    reading = read_source(directory)
    verdict = diagnose(reading.snapshots, broken=reading.broken)
    assert (verdict.ranks, verdict.missing_ranks) == ((5,), (2,))
    assert "os.system" in str(verdict.evidence["broken_dumps"])


def test_byte_that_is_no_text(directory: Path) -> None:
    """It costs nothing in a name, and its own rank alone in JSON; a line without a rank is counted."""
    texts = [json.dumps({"rank": rank} | _document(directory, rank)).encode() for rank in range(8)]
    texts[0] = texts[0].replace(b'"version": "', b'"version": "\xff', 1)
    assert b"\xff" in texts[0]
    texts[1] = texts[1][:-1] + b"\xff"
    path = directory.parent / "dumps.json"
    path.write_bytes(b"\n".join(texts) + b'\n{"rank": 9, "entr')
    reading = read_source(path)
    assert {each.rank for each in reading.snapshots} == set(range(8)) - {1}
    assert reading.skipped_lines == 2
    assert diagnose(reading.snapshots).ranks == (5,)


def test_directory_without_dumps(tmp_path: Path) -> None:
    """It is one sentence, as are two dumps of a rank, no usable dump, and a path that is not there."""
    with pytest.raises(UserError, match="neither a directory of dumps nor a file"):
        read_source(tmp_path / "absent")
    for name, text, sentence in (
        (None, "", "no file whose name ends in a rank's number"),
        ("rank_3.json", "nonsense", "holds no usable dump: rank 3: no usable pickle"),
        ("_dump_3", "{}", "are both dumps of rank 3"),
    ):
        if name is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(UserError, match=sentence):
            read_source(tmp_path)


def test_pipe_is_not_opened(directory: Path) -> None:
    """What is no regular file is not opened. A pipe would block for ever."""
    (directory / "_dump_2").unlink()
    os.mkfifo(directory / "_dump_2")
    assert read_source(directory).broken == {2: "is no regular file"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of other users in its folders")
def test_dumps_of_a_user_in_a_folder_of_root(directory: Path) -> None:
    """Root reads what it has unpacked with the owners as they were; a link of a user leads nowhere."""
    assert not directory.parent.stat().st_mode & stat.S_IXOTH
    for path in directory.iterdir():
        os.chown(path, ALICE, ALICE)
        path.chmod(0o600)
    (directory / "_dump_3").rename(directory.parent / "secret")
    (directory / "_dump_3").symlink_to(directory.parent / "secret")
    os.chown(directory / "_dump_3", ALICE, ALICE, follow_symlinks=False)
    reading = read_source(directory)
    assert (reading.broken, len(reading.snapshots)) == ({3: "is no regular file"}, 7)


def test_huge_file_is_refused_unread(tmp_path: Path) -> None:
    """A file of ten gigabytes is refused unread, as a dump and as a document."""
    for name in ("_dump_1", "all.json"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10 << 30)
    with pytest.raises(UserError, match="rank 1: is larger than 256 MiB"):
        read_source(tmp_path)
    with pytest.raises(UserError, match="larger than 2 GiB"):
        read_source(tmp_path / "all.json")


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"3", b"[3]", b'{"a": {}}', b"[", b"[]", b"{}", b"[{]"),
        *(b'["\xff"]', b'{"\xff": 1}', b'{"rank": 0, "entries": [{"state": "\xff"}]}\n{}\n'),
    ],
)
def test_json_without_snapshots(tmp_path: Path, text: bytes) -> None:
    """JSON without snapshots is one sentence. Never a traceback, whatever the bytes."""
    path = tmp_path / "all.json"
    path.write_bytes(text)
    with pytest.raises(UserError):
        read_source(path)


def test_byte_order_mark(directory: Path) -> None:
    """It is no mistake before JSON, nor are lines that end as on Windows; in a dump and in a file of all."""
    texts = [json.dumps({"rank": rank} | _document(directory, rank)) for rank in range(8)]
    (directory / "_dump_2").write_bytes(BOM + texts[2].encode())
    assert read_source(directory).broken == {}
    path = directory.parent / "all.json"
    path.write_bytes(BOM + "\r\n".join(texts).encode())
    assert diagnose(read_source(path).snapshots).ranks == (5,)


def test_impossible_rank_numbers(directory: Path) -> None:
    """It costs no memory: as a member it makes the group unknown, in the name of a file it is a mistake."""
    document = _document(directory, 2)
    for config in document["pg_config"].values():
        config["ranks"] = "[0, 9999999]"
    (directory / "_dump_2").write_bytes(recorder_pickle(document))
    verdict = diagnose(read_source(directory).snapshots)
    assert (verdict.ranks, verdict.missing_ranks) == ((5,), ())
    (directory / "_dump_9999999").write_bytes(recorder_pickle(document))
    with pytest.raises(UserError, match="rank 9999999; expected one below 131072"):
        read_source(directory)


def test_json_beyond_the_memory_limit(tmp_path: Path) -> None:
    """It is one sentence: `[{},{},...` takes thirty times its text; the bound is gone afterwards."""
    path = tmp_path / "all.json"
    path.write_text("[" + "{}," * 10_000_000 + "{}]")
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))\n"
        "from rankwatch_cli.main import main; sys.exit(main(['diagnose', 'hang', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60.0, check=False
    )
    assert done.returncode == 2
    assert done.stderr.endswith("all.json needs far more memory than its size, or than there is\n")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with bounded_memory(1 << 40):
        assert 0 < resource.getrlimit(resource.RLIMIT_AS)[0] <= 1 << 41
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_too_few_dumps_are_not_ok() -> None:
    """One dump of four in which nothing waits, or four that hold nothing, are no proof that nothing hangs."""
    dumps = finished_job(Shape(4)).dumps()
    assert judged(dumps).state is State.OK
    assert judged({0: dumps[0]}, broken={3: "it was cut off"}).state is State.INCONCLUSIVE
    assert judged({rank: {"entries": []} for rank in range(4)}).state is State.INCONCLUSIVE


def _document(directory: Path, rank: int) -> dict[str, Any]:
    document: Any = pickle.loads((directory / f"_dump_{rank}").read_bytes())
    return document
