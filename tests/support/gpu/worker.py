"""A worker process that a test controls: it answers, hangs, dies, or breaks the protocol.

Run as a program, this is the worker; imported, it gives the command that starts it.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from pathlib import Path

import msgspec

from rankwatch_agent.sources.gpu.protocol import Answer, Failure, Gpu, Reading, Sample, XidEvent

LENGTH = struct.Struct(">I")
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def command(act: Path) -> list[str]:
    """The command that starts it. At each request it does what the file `act` contains."""
    return [sys.executable, __file__, str(act)]


def reading(*, up: bool = True, xids: tuple[int, ...] = ()) -> Reading:
    """One GPU that draws 300 W."""
    power = Sample("rankwatch_gpu_power_watts", (UUID,), 300.0)
    is_up = Sample("rankwatch_gpu_up", (UUID,), float(up))
    gpu = Gpu(
        uuid=UUID,
        pci_bus_id="0000:1b:00.0",
        index=0,
        minor_number=0,
        model="H100",
        up=up,
        lost_reason="" if up else "GPU is lost",
        samples=(is_up, power) if up else (is_up,),
        supported=("power",),
        unsupported=(),
    )
    events = (XidEvent(uuid=UUID, xid=xid, timestamp_seconds=1.0) for xid in xids)
    return Reading(gpus=(gpu,), xids=tuple(events))


def main(act: Path) -> None:
    requests = sys.stdin.buffer
    while head := requests.read(LENGTH.size):
        requests.read(LENGTH.unpack(head)[0])
        _do(act.read_text())


def _do(what: str) -> None:
    if what == "hang":
        time.sleep(3600)
    elif what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what in _BROKEN:
        sys.stdout.buffer.write(_BROKEN[what])
        sys.stdout.buffer.flush()
    else:
        xids = (int(what.split()[1]),) if what.startswith("xid") else ()
        _send(msgspec.msgpack.encode(_ANSWERS.get(what) or Answer(reading=reading(xids=xids))))
        if what == "leave":
            sys.exit(0)


_BROKEN = {
    "garbage": LENGTH.pack(8) + b"\xc1garbage",
    "huge": LENGTH.pack(0xFFFFFFFF),
    "half": LENGTH.pack(100) + b"x",
}
_NO_GPU = "the driver answers but shows no GPU"
_ANSWERS = {
    "fail": Answer(failure=Failure(message="the driver fails")),
    "lost": Answer(reading=reading(up=False)),
    "all lost": Answer(failure=Failure(message=_NO_GPU, gpus=reading(up=False).gpus)),
    "absent": Answer(failure=Failure(message="no driver", absent=True)),
    "empty": Answer(reading=Reading(gpus=())),
}


def _send(message: bytes) -> None:
    sys.stdout.buffer.write(LENGTH.pack(len(message)) + message)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
