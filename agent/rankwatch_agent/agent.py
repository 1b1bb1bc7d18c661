"""The agent as a whole: collectors under a supervisor, and the server for their results."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from rankwatch import __version__
from rankwatch.untrusted.paths import write_at_once
from rankwatch_agent.incidents.metrics_history import MetricsHistory
from rankwatch_agent.runtime.collector import Collector
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import UserError
from rankwatch_agent.runtime.exposition import Exposition, constant_labels
from rankwatch_agent.runtime.pages import build_probes, build_routes, build_token, warning_if_open
from rankwatch_agent.runtime.server import MetricsServer, build_tls, join_address
from rankwatch_agent.runtime.supervisor import Snapshot, Supervisor

if TYPE_CHECKING:
    from rankwatch_agent.runtime.otlp_metrics import OtlpExport

logger = logging.getLogger(__name__)

STOP_SECONDS = 1.0
"""Longest wait for collectors at the end. One that hangs ends with the process."""
OTLP_STOP_SECONDS = 0.5
"""Longest wait for an export at the end. A healthy endpoint takes no longer."""


class Agent:
    """Runs for the length of its `with` block.

    history: receives the source of the metrics, for evidence of incidents.
    services: what runs beside the collectors, and ends after them.

    Raises UserError for an address, a certificate or a token that cannot be used.
    """

    def __init__(
        self,
        config: AgentConfig,
        collectors: Sequence[Collector],
        *,
        history: MetricsHistory | None = None,
        services: Sequence[AbstractContextManager[object]] = (),
    ) -> None:
        self._config = config
        self._supervisor = Supervisor(collectors, version=__version__)
        self._otlp = _build_otlp(config, self._supervisor.snapshot)
        self._services = ExitStack()
        self._beside = services
        snapshot = self._supervisor.snapshot if self._otlp is None else self._otlp.snapshot
        exposition = Exposition(constant_labels(node=config.node, cluster=config.cluster))
        if history is not None:
            history.set_source(lambda: exposition.render(snapshot(), accept="", accept_encoding="gzip").body)
        token = build_token(config.bearer_token_file)
        serve = partial(
            MetricsServer,
            max_requests=config.max_requests,
            request_timeout_seconds=config.request_timeout_seconds,
        )
        tls = build_tls(
            certificate=config.tls_certificate, key=config.tls_key, client_ca=config.tls_client_ca
        )
        routes = build_routes(snapshot, exposition, token)
        self._server = serve(config.address(), routes, tls=tls)
        address = config.probe_address()  # of their own: scrapes and their clients take no place from probes
        self._probes = None if address is None else serve(address, build_probes(self._supervisor.snapshot))

    @property
    def address(self) -> str:
        """HOST:PORT that the agent listens on."""
        return join_address(*self._server.listening_address())

    @property
    def _servers(self) -> list[MetricsServer]:
        return [self._server] if self._probes is None else [self._server, self._probes]

    def __enter__(self) -> Agent:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
        path = self._config.address_file
        if path is not None:
            try:
                write_at_once(path, f"{self.address}\n".encode())
            except OSError as error:
                self._stop_serving()
                raise UserError(f"could not write address_file {path}: {error.strerror or error}") from None
        self._supervisor.start()
        if self._otlp is not None:
            self._otlp.start()
        for service in self._beside:
            self._services.enter_context(service)
        self._log_address()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_serving()
        if self._otlp is not None:
            self._otlp.stop(OTLP_STOP_SECONDS)
        self._supervisor.stop(STOP_SECONDS)
        self._services.close()

    def _log_address(self) -> None:
        config = self._config
        scheme = "http" if config.tls_certificate is None else "https"
        logger.info("serving %s://%s/metrics", scheme, self.address)
        if self._probes is not None:
            logger.info("serving http://%s/healthz", join_address(*self._probes.listening_address()))
        guarded = config.tls_certificate is not None or config.bearer_token_file is not None
        warning = warning_if_open(*self._server.listening_address(), guarded=guarded)
        if warning is not None:
            logger.warning("%s", warning)

    def _stop_serving(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _build_otlp(config: AgentConfig, snapshot: Callable[[], Snapshot]) -> OtlpExport | None:
    """Return the export over OTLP, if an endpoint is set. Otherwise its modules are not imported."""
    if not config.otlp_endpoint:
        return None
    from rankwatch_agent.runtime.otlp_endpoint import settings_of
    from rankwatch_agent.runtime.otlp_metrics import OtlpExport

    return OtlpExport(snapshot, *settings_of(config, config.otlp_endpoint))


def give_back_what_is_free() -> None:
    """Have the C library give back what large objects took, as soon as they are gone.

    Call it before threads start. Without it flight recorders that a user has filled leave the agent larger
    for good. Another C library than glibc is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # parameters of mallopt(3), by <malloc.h>
    # It begins with this threshold, and raises it up to 32 MiB with the largest block that was freed.
    mallopt(trim_threshold, 128 << 10)
    mallopt(mmap_threshold, 128 << 10)
    # Otherwise each thread has a heap, eight for each processor at most; each keeps what it once had.
    mallopt(arena_max, 2)
