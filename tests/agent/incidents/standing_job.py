"""A real gloo job of the tests of evidence: after some steps the rank that is named sleeps in data_wait."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

import rankwatch

asleep = int(sys.argv[1])
run = rankwatch.start(target_steps=1000)
dist.init_process_group("gloo")
with run:
    for step in range(1000):
        with run.step():
            with run.phase("data_wait"):
                time.sleep(1000.0 if step == 20 and dist.get_rank() == asleep else 0.01)
            with run.phase("communication"):
                dist.all_reduce(torch.ones(10))
