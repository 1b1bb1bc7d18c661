"""What a real GPU has to show: no call of ours waits for it, and its values are those of the CPU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import rankwatch
from rankwatch.blackbox.layout import RecordKind
from rankwatch.fingerprints.digest import Digest
from support.training.blackbox import box, now, of_kind

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Inside the block torch raises on a synchronising call."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()


def test_phases(tmp_path: Path) -> None:
    """Timing never synchronises the GPU."""
    run = rankwatch.start(run="gpu", rank=0, directory=tmp_path, flight_recorder=False)
    matrix = torch.randn(4096, 4096, device="cuda")
    with run.step():
        pass  # shows the device
    torch.cuda.synchronize()
    with no_synchronisation(), run.step(), run.phase("forward"):
        for _ in range(20):
            matrix = matrix @ matrix / 64.0
    with run.step():
        pass
    ((name, (own, step)),) = [
        (each.name, each.payload) for each in of_kind(box(tmp_path), RecordKind.DEVICE_PHASE)
    ]
    assert (name, step) == ("forward", 1)
    assert own > 0.0


def test_loss(run: rankwatch.Run, tmp_path: Path) -> None:
    """A scalar arrives without synchronisation."""
    loss = torch.full((), 2.0, device="cuda")
    with no_synchronisation(), run.step():
        run.scalar("loss", loss)
    with run.step():
        pass
    assert [each.payload for each in of_kind(box(tmp_path), RecordKind.SCALAR)] == [(2.0, 0)]


def test_fingerprints(run: rankwatch.Run, tmp_path: Path) -> None:
    """The sums of a model on a GPU come without a synchronisation, and not while a graph is captured."""
    run.identity = run.identity._replace(world_size=2)
    model = torch.nn.Linear(1000, 1000, device="cuda")
    with no_synchronisation(), torch.device("cuda"), run.step(0):
        run.fingerprint(model)
    graph, other = torch.cuda.CUDAGraph(), torch.ones(1, device="cuda")
    with run.step(100), torch.cuda.graph(graph):
        run.fingerprint(model)
        other.add_(1.0)  # PyTorch warns of a graph that is empty
    torch.cuda.synchronize()
    with run.step(200):
        run.fingerprint(model)
    torch.cuda.synchronize()
    with run.step(300):
        run.fingerprint(model.cpu())
    found = {
        int(each.payload[0]): (each.name, each.payload[1:3])
        for each in of_kind(box(tmp_path), RecordKind.FINGERPRINT)
        if each.payload[4] == 0
    }
    assert found.keys() == {0, 200, 300}
    assert found[0] == found[200] == found[300]
    assert now(box(tmp_path)).errors == 0


def test_digest() -> None:
    """The sums of a GPU are those of the CPU, and come without a synchronisation."""
    tensors = [torch.randn(3_000_001), torch.randn(77).to(torch.bfloat16)]
    there = [each.cuda() for each in tensors]
    reader = Digest(there)
    with no_synchronisation():
        found = reader.compute(there)
    assert found.tolist() == Digest(tensors).compute(tensors).tolist()


@pytest.mark.process
def test_uuid(run: rankwatch.Run, tmp_path: Path) -> None:
    """A GPU with a tensor on it is recorded under the UUID that nvidia-smi prints."""
    with run, run.step():
        tensor = torch.ones(1024, device="cuda")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    recorded = now(box(tmp_path)).gpu
    assert tensor.is_cuda
    assert recorded.startswith(("GPU-", "MIG-"))
    assert f"UUID: {recorded})" in listed
