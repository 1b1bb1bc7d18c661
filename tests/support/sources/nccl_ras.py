"""A fake NCCL RAS service: a real TCP server with both forms of the answer, which can misbehave."""

from __future__ import annotations

import json
import re
import socketserver
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.servers.loopback import serving

KINDS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


class Gone(NamedTuple):
    """A rank without data in RAS."""

    rank: int
    unresponsive: bool = True
    dead: bool = False


@dataclass
class Comm:
    """A communicator: launches of AllReduce by rank, or of all kinds as a mapping."""

    launched: Sequence[int | Mapping[str, int]]
    name: int = 0x27A079B828FF1A75
    second: str = "0x1:0x2"
    gone: Sequence[Gone] = ()
    status: Mapping[int, Mapping[str, int | bool]] = field(default_factory=dict)
    """Rank -> fields that differ from those of a running rank."""
    first_pid: int = 1000
    places: Sequence[int] = ()
    """Process id of each rank; the rank itself where empty."""

    @property
    def size(self) -> int:
        return len(self.launched) + len(self.gone)


def json_status(*comms: Comm, version: str = "2.28.9+cuda13.0", comma: bool = True) -> bytes:
    """Returns the JSON form as NCCL writes it, or without the comma that 2.28.9 omits."""
    document = {
        "nccl_version": version,
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-05-05 06:16:47",
        "communicators_count": len(comms),
        "communicators": [_communicator(each) for each in comms],
        "ras": {"collection_time_sec": 0.004, "timeouts_count": 0},
    }
    text = json.dumps(document, indent=2)
    return (text if comma else re.sub(r',(\s*"status": {\s*"unresponsive")', r"\1", text)).encode()


def _communicator(comm: Comm) -> dict[str, Any]:
    gone = {each.rank for each in comm.gone}
    answered = [rank for rank in range(comm.size) if rank not in gone]
    return {
        "hash": f"0x{comm.name:x}",
        "secondary_hash": comm.second,
        "size": comm.size,
        "ranks_count": len(comm.launched),
        "missing_ranks_count": len(comm.gone),
        "ranks": [_rank(comm, *each) for each in zip(answered, comm.launched, strict=True)],
        "missing_ranks": [
            {
                **_process(comm, each.rank),
                "status": {"unresponsive": each.unresponsive, "considered_dead": each.dead},
            }
            for each in comm.gone
        ],
    }


def _rank(comm: Comm, rank: int, launched: int | Mapping[str, int]) -> dict[str, Any]:
    running = {"init_state": 0, "async_error": 0}
    flags = dict.fromkeys(("finalize_called", "destroy_flag", "abort_flag"), False)
    counts = {"AllReduce": launched} if isinstance(launched, int) else launched
    return {
        **_process(comm, rank),
        "status": {**running, **flags, **comm.status.get(rank, {})},
        "collective_counts": {**dict.fromkeys(KINDS, 0), **counts},
    }


def _process(comm: Comm, rank: int) -> dict[str, Any]:
    place = comm.places[rank] if comm.places else rank
    host, device = divmod(place, 8)
    pid = comm.first_pid + place
    return {"rank": rank, "host": f"10.0.0.{host}", "pid": pid, "cuda_dev": device, "nvml_dev": device}


def text_status(rows: str, errors: str = "", warnings: str = "", *, version: str = "2.26.2") -> bytes:
    """Returns the text form: lines of the table, then the parts `Errors` and `Warnings`."""
    return (
        f"NCCL version {version} compiled with CUDA 12.6\n"
        "CUDA runtime version 12060, driver version 12060\n\n"
        "Job summary\n===========\n\n"
        "  Nodes  Processes         GPUs  Processes     GPUs\n"
        "(total)   per node  per process    (total)  (total)\n"
        "      4          8            1         32       32\n\n"
        "Communicators... (0.00s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        f"{rows}\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"
    ).encode()


class RasService:
    """A service whose answer may be changed between two requests.

    mode: `normal`; `old` (knows no JSON); `silent` (takes the connection, says nothing); `drip` (a byte now
    and then, after the greeting); `stranger` (another protocol); `closes` (after the greeting); `huge`.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.mode = "normal"
        self.json = json_status(Comm((5, 5)))
        self.text = text_status("    0         1         1         2         2         2   RUNNING      OK\n")
        self.commands: list[str] = []
        self.released = threading.Event()

    def reply(self, command: str) -> bytes:
        """Returns the answer to one command."""
        word = command.lower()
        if word.startswith("client protocol "):
            return b"SERVER PROTOCOL 2\n" if self.mode != "stranger" else b"SSH-2.0-OpenSSH_9.6\r\n"
        if word.startswith("timeout ") and word[8:].isdecimal():
            return b"OK\n"
        if word == "set format json" and self.mode != "old":
            return b"OK\n"
        return f"ERROR: Unknown command {command}\n".encode()


@contextmanager
def ras_service() -> Iterator[RasService]:
    """Runs a service on a free loopback port."""

    class Client(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client has given up, which is what is being tested
                self._talk()

        def _talk(self) -> None:
            if service.mode == "silent":
                service.released.wait()
                return
            form = "text"
            while line := self.rfile.readline(1024):
                command = line.decode().strip()
                service.commands.append(command)
                if command in ("STATUS", "VERBOSE STATUS"):
                    self._status(service.json if form == "json" else service.text)
                    return
                if service.mode == "closes" and not command.startswith("CLIENT"):
                    return
                answer = service.reply(command)
                form = "json" if command == "SET FORMAT json" and answer == b"OK\n" else form
                self.wfile.write(answer)

        def _status(self, body: bytes) -> None:
            if service.mode == "drip":
                while not service.released.wait(0.02):
                    self.wfile.write(b" ")
            elif service.mode == "huge":
                while not service.released.is_set():
                    self.wfile.write(b" " * (1 << 20))
            else:
                self.wfile.write(body)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    with serving(Server(("127.0.0.1", 0), Client)) as address:
        service = RasService(int(address.rpartition(":")[2]))
        try:
            yield service
        finally:
            service.released.set()
