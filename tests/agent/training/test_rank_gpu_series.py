"""A rank's GPU becomes a series of its own."""

from __future__ import annotations

from pathlib import Path

from rankwatch_agent.training.collector import RanksCollector
from support.training.ranks import go_on, rank, values

GPU = "GPU-11111111-aaaa-bbbb-cccc-0123456789ab"


def test_a_rank_whose_gpu_is_known_is_joined_to_it(tmp_path: Path) -> None:
    """Before that there is no series, and none after the end of the rank: another run may have the GPU."""
    collector = RanksCollector(directory=tmp_path)
    with rank(tmp_path, f"steps(1); ready(); run._writer.set_gpu('{GPU}'); ready()") as process:
        assert values(collector.collect(), "rankwatch_rank_gpu_info") == {}
        go_on(process)
        assert values(collector.collect(), "rankwatch_rank_gpu_info") == {("job", "0", GPU): 1}
    assert values(collector.collect(), "rankwatch_rank_gpu_info") == {}
