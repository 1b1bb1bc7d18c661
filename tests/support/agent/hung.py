"""An agent with a collector `host` that never returns, as behind a dead file server, beside healthy ones. Run
as a program: ADDRESS_FILE PROCFS SYSFS. It ends on SIGTERM."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwatch_agent.agent import Agent
from rankwatch_agent.collectors import build_collectors, build_shared
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.logs import configure_logging
from support.agent.process import HungCollector

DEADLINE_SECONDS = 0.1


def main(arguments: Sequence[str]) -> None:
    address_file, procfs, sysfs = map(Path, arguments)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    configure_logging(level="info", log_format="text")
    config = AgentConfig(
        listen="127.0.0.1:0",
        address_file=address_file,
        node="n",
        procfs=procfs,
        sysfs=sysfs,
        collectors=("network", "tcp"),
    )
    hung = HungCollector("host", deadline_seconds=DEADLINE_SECONDS)
    with Agent(config, [hung, *build_collectors(config, build_shared(config))]):
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main(sys.argv[1:])
