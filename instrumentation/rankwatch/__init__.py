"""Record what a rank of a distributed training run does, for the rankwatch agent to read.

    import rankwatch

    run = rankwatch.start()
    for batch in run.batches(loader):
        with run.step():
            with run.phase("forward"):
                loss = model(batch)
            ...

It needs nothing but Python's standard library, and torch where torch is there. Nothing in here takes
a lock, talks to a network, synchronises a device or raises on the training thread.
"""

from rankwatch.disabled import DisabledRun
from rankwatch.errors import BlackBoxError, IdentityError, RankwatchError, UsageError
from rankwatch.run import Run
from rankwatch.starting import start

__all__ = [
    "start",
    "Run",
    "DisabledRun",
    "RankwatchError",
    "UsageError",
    "IdentityError",
    "BlackBoxError",
]
__version__ = "0.1.0"
