"""Ray Train: its workers record themselves, by an environment that the driver gives them.

    from ray.train import RunConfig
    from rankwatch.integrations.ray_train import environment

    RunConfig(name="pretrain", worker_runtime_env={"env_vars": environment(run="pretrain")})

With that, zero-code recording works in each worker. `rankwatch run -- python driver.py` adds it to every
`RunConfig` by itself. A training loop that makes the explicit calls begins with `ray_train.start()`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import rankwatch
from rankwatch.automatic.launching import recording_environment
from rankwatch.automatic.patching import watch
from rankwatch.conventions import environment as variables
from rankwatch.errors import UsageError
from rankwatch.integrations.frameworks import require

require("ray", integration="ray_train", name="Ray")

_PREFIX = "RANKWATCH_"
_OF_THIS_PROCESS = (variables.RANK_PROCESS,)


def environment(*, run: str | None = None) -> dict[str, str]:
    """Return variables with which Ray's workers record themselves: PYTHONPATH, and what this process has of
    rankwatch's variables.

    run: id of the run. Without it, and without `RANKWATCH_RUN`, all trainings of a driver share the id of
        Ray's job.
    """
    env = recording_environment(os.environ)
    given = {name: value for name, value in env.items() if name.startswith(_PREFIX)}
    for name in _OF_THIS_PROCESS:
        given.pop(name, None)
    if run is not None:
        given[variables.RUN] = run
    return {"PYTHONPATH": env["PYTHONPATH"], **given}


def start(**options: Any) -> rankwatch.Run | rankwatch.DisabledRun:
    """Call `rankwatch.start` in a worker, with rank, world size, local rank and name of the run by Ray Train.

    options: those of `rankwatch.start`. Raises UsageError outside of a worker.
    """
    from ray import train

    try:
        context: Any = train.get_context()
        place = {
            "rank": context.get_world_rank(),
            "world_size": context.get_world_size(),
            "local_rank": context.get_local_rank(),
        }
        name = context.get_experiment_name()
    except (RuntimeError, AttributeError, TypeError) as error:
        raise UsageError(f"this process is no worker of Ray Train: {error}") from None
    if None in place.values():
        raise UsageError("this process is no worker of Ray Train: it has no rank")
    if not os.environ.get(variables.RUN) and name:
        place["run"] = name
    return rankwatch.start(**(place | options))


def patch(module: ModuleType) -> None:
    """Let every `RunConfig` of `ray.train.v2.api.config` give its workers the environment."""
    watch(module.RunConfig, "__post_init__", began=lambda config: config, ended=_configured)


def _configured(config: Any, result: Any, error: BaseException | None) -> None:
    """Add to what the user has set for the workers, which stays."""
    if error is not None:
        return
    given = config.worker_runtime_env
    theirs: Mapping[str, str] = given.get("env_vars") or {}
    ours = environment(run=os.environ.get(variables.RUN) or config.name)
    if path := theirs.get("PYTHONPATH"):
        ours["PYTHONPATH"] = recording_environment({"PYTHONPATH": path})["PYTHONPATH"]
        theirs = {name: value for name, value in theirs.items() if name != "PYTHONPATH"}
    config.worker_runtime_env = {**given, "env_vars": {**ours, **theirs}}
