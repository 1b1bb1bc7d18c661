"""The agent as a whole: collectors under a supervisor, and the server that shows their results."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rankwatch_agent.collection import Collector
from rankwatch_agent.config import AgentConfig
from rankwatch_agent.export.exposition import Exposition, constant_labels
from rankwatch_agent.serving.pages import build_routes
from rankwatch_agent.serving.server import MetricsServer, join_address
from rankwatch_agent.supervision.supervisor import Supervisor
from rankwatch_agent.user_error import UserError
from rankwatch_agent.version import version

logger = logging.getLogger(__name__)

STOP_SECONDS = 2.0
"""Longest wait for collectors at the end; one that hangs is left to the end of the process."""


class Agent:
    """Runs while the `with` block does. Entering raises UserError where the address cannot be used."""

    def __init__(self, config: AgentConfig, collectors: Sequence[Collector]) -> None:
        self._config = config
        self._supervisor = Supervisor(collectors, version=version())
        exposition = Exposition(constant_labels(node=config.node, cluster=config.cluster))
        self._server = MetricsServer(
            config.address(),
            build_routes(self._supervisor.snapshot, exposition),
            max_requests=config.max_requests,
            request_timeout_seconds=config.request_timeout_seconds,
        )
        self._serving = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def address(self) -> str:
        """HOST:PORT the agent listens on."""
        return join_address(*self._server.listening_address())

    def __enter__(self) -> Agent:
        self._serving.start()
        if self._config.address_file is not None:
            try:
                _write_atomically(self._config.address_file, f"{self.address}\n")
            except UserError:
                self._stop_serving()
                raise
        self._supervisor.start()
        logger.info("serving http://%s/metrics", self.address)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stop_serving()
        self._supervisor.stop(STOP_SECONDS)

    def _stop_serving(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _write_atomically(path: Path, text: str) -> None:
    """Put the file in place complete or not at all; raises UserError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"could not write address_file {path}: {error.strerror or error}") from None
