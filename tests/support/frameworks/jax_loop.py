"""A training loop in JAX that calls nothing of rankwatch in its steps.

jax_loop.py COUNT INDEX PORT: as process INDEX of COUNT, which meet at PORT; alone where COUNT is 1.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

import rankwatch.integrations.jax


@jax.jit
def train_step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(weights)
    return weights - 0.1 * gradient, loss


def main(count: int, index: int, port: int) -> None:
    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
    run = rankwatch.integrations.jax.start(target_steps=5)
    weights, batch = jnp.ones(4), jnp.ones((2, 4))
    for number in range(5):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights, loss = train_step(weights, batch)
        with jax.profiler.StepTraceAnnotation("eval", step_num=number):
            pass
    run.finish()
    print(loss, weights)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
