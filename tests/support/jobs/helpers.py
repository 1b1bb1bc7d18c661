"""A trainer that calls `start` without a guard and uses every kind of process that multiprocessing has: by
each method a pool, a manager and a plain process, and workers of a real data loader."""

import multiprocessing
import os

if "WITH_TORCH" in os.environ:  # not each child needs it
    import torch.utils.data  # noqa: F401

import rankwatch

run = rankwatch.start(run="job")


def double(number):
    return 2 * number


def work(method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
    with context.Manager() as manager:
        assert manager.dict(a=1)["a"] == 1
    process = context.Process(target=double, args=(1,))
    process.start()
    process.join()
    assert process.exitcode == 0


def ask_again(_):
    """A worker's own code may share a module with the trainer that records."""
    rankwatch.start(run="worker").finish()


def load():
    os.environ["WITH_TORCH"] = "1"
    import torch.utils.data

    numbers = torch.utils.data.TensorDataset(torch.arange(4))
    for method in ("spawn", "fork"):
        loader = torch.utils.data.DataLoader(
            numbers, num_workers=1, multiprocessing_context=method, worker_init_fn=ask_again
        )
        assert len(list(loader)) == 4


if __name__ == "__main__":
    for _ in range(3):
        with run.step():
            pass
    for method in ("spawn", "forkserver", "fork"):
        work(method)
    load()
    for _ in range(3):
        with run.step():
            pass
    run.finish()
