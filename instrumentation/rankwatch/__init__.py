"""Record what a rank of a distributed training run does, for the rankwatch agent to read.

    import rankwatch

    run = rankwatch.start()
    for batch in run.batches(loader):
        with run.step():
            with run.phase("forward"):
                loss = model(batch)
            ...

It needs only Python's standard library and uses torch if the process has imported it. On the training thread
it takes no lock, uses no network, synchronises no device and raises nothing but UsageError for wrong calls
before the first step has ended.
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
