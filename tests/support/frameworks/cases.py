"""Runs trainings one after the other, each in a fork of a process that has imported its framework."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def answer_cases(cases: Mapping[str, Any], *, ranks: int = 1) -> None:
    """The main program of a script of cases: FOLDER CASE...

    Standard error of a case goes to the file `errors` in a folder of its name, and what its rank 0 returns to
    `answer.json`.
    """
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        own = folder / name
        own.mkdir(parents=True)
        os.environ.update(RANKWATCH_DIR=str(own / "boxes"), RANKWATCH_RUN="job")
        if ranks > 1:
            os.environ.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
        children = []
        for rank in range(ranks):
            if child := os.fork():
                children.append(child)
                continue
            if ranks > 1:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            _answer(own, cases[name], rank)
            return
        for child in children:
            os.waitpid(child, 0)


def _answer(folder: Path, case: Any, rank: int) -> None:
    with (folder / "errors").open("ab") as errors:
        os.dup2(errors.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    answer = json.dumps(case())
    if rank == 0:
        (folder / "answer.json").write_text(answer)


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])
