"""How many ranks a simulated job has, and which part of the model and of the data each of them holds."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch_agent.runtime.errors import UserError

MOST_RANKS = 65_536
MOST_MICROBATCHES = 1_024
RANKS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class JobShape:
    """Parallelism of a job; rank = (stage * replicas + replica) * shards + shard, as Megatron orders them."""

    data_parallel: int = 8
    """Replicas of the model."""
    pipeline_parallel: int = 1
    """Stages of each replica."""
    tensor_parallel: int = 1
    """Shards of each stage."""
    microbatches: int = 4
    """Of each replica in one step."""

    def __post_init__(self) -> None:
        """Raises UserError for a number below 1 and for a job too large to simulate."""
        for name in ("data_parallel", "pipeline_parallel", "tensor_parallel", "microbatches"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, expected at least 1")
        if self.ranks > MOST_RANKS:
            raise UserError(f"the job has {self.ranks} ranks, expected at most {MOST_RANKS}")
        if self.microbatches > MOST_MICROBATCHES:
            raise UserError(f"microbatches is {self.microbatches}, expected at most {MOST_MICROBATCHES}")

    @property
    def ranks(self) -> int:
        """World size."""
        return self.pipeline_parallel * self.ranks_per_stage

    @property
    def ranks_per_stage(self) -> int:
        """Ranks that hold the same stage, over all replicas and shards."""
        return self.data_parallel * self.tensor_parallel

    def rank(self, stage: int, replica: int, shard: int) -> int:
        """Global rank at these coordinates."""
        return (stage * self.data_parallel + replica) * self.tensor_parallel + shard

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and shard of a rank; raises UserError where there is no such rank."""
        if not 0 <= rank < self.ranks:
            raise UserError(f"rank is {rank}, expected 0 to {self.ranks - 1}")
        rest, shard = divmod(rank, self.tensor_parallel)
        stage, replica = divmod(rest, self.data_parallel)
        return stage, replica, shard
