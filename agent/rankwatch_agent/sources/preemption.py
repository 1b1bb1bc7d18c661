"""Collector `preemption`: asks the cloud's metadata server whether this machine will be taken away.

It is off unless a cloud is set, because it asks over the network. The server is at a link-local address, so
nothing leaves the machine.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPException
from types import MappingProxyType

from rankwatch.untrusted.http_client import ask
from rankwatch.untrusted.text import printable
from rankwatch_agent.runtime.collector import Collection, Collector, Schedule, sample
from rankwatch_agent.runtime.config import AgentConfig
from rankwatch_agent.runtime.errors import CollectError
from rankwatch_agent.runtime.node_events import NodeEvents, PreemptionNotice
from rankwatch_agent.runtime.source import source
from rankwatch_agent.sources.shared import NodeShared

METADATA_SERVER = "http://169.254.169.254"
"""Of all three clouds."""
_MOST_BYTES = 1 << 16
_MOST_TEXT = 200
_TIMEOUT_SECONDS = 2.0


# Clouds announce the end of a machine 30 s to two minutes before.
@source(interval_seconds=5.0, deadline_seconds=5.0)
def preemption(config: AgentConfig, shared: NodeShared, schedule: Schedule) -> Iterator[Collector]:
    if config.preemption_cloud:
        yield PreemptionCollector(cloud=config.preemption_cloud, events=shared.events, schedule=schedule)


class PreemptionCollector:
    """Asks one cloud: `aws` (spot instances), `gcp` (spot and preemptible machines), or `azure` (spot).

    events: takes each new notice.
    server: address of the metadata server.
    """

    name = "preemption"

    def __init__(
        self,
        *,
        cloud: str,
        events: NodeEvents,
        schedule: Schedule,
        server: str = METADATA_SERVER,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.interval_seconds, self.deadline_seconds = schedule
        self._cloud, self._server = cloud, server.rstrip("/")
        self._events = events
        self._wall = wall
        self._notice: PreemptionNotice | None = None

    def collect(self) -> Collection:
        """Ask once. Raises CollectError where the server gives no answer that makes sense."""
        try:
            text = _CLOUDS[self._cloud](self._server)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            raise CollectError(
                f"could not ask {self._server} for notices of {self._cloud}: {error}"
            ) from None
        if not text:
            self._notice = None
        elif self._notice is None or self._notice.text != text:
            self._notice = PreemptionNotice(self._cloud, self._wall(), text)
            self._events.add_notice(self._notice)
        if self._notice is None:
            return Collection()
        return Collection(
            (sample("rankwatch_preemption_notice_timestamp_seconds", (self._cloud,), self._notice.wall),)
        )


def _aws(server: str) -> str:
    """Return the action that is announced two minutes before; 404 while there is none."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _ask(f"{server}/latest/api/token", lifetime, method="PUT")
    if not token.isascii() or not token.isprintable():
        raise ValueError("the token is no text")
    answer = _ask(f"{server}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    found = json.loads(answer) if answer else {}
    if not isinstance(found, dict):
        raise ValueError("the answer is no object")
    return _text(f"AWS: {found.get('action')} at {found.get('time')}") if found else ""


def _gcp(server: str) -> str:
    """Return a sentence once the answer is TRUE: the machine is being preempted."""
    flavor = {"Metadata-Flavor": "Google"}
    answer = _ask(f"{server}/computeMetadata/v1/instance/preempted", flavor).strip()
    if answer not in ("TRUE", "FALSE", ""):
        raise ValueError(f"the answer is {answer[:20]!r}")
    return "Google Cloud: this machine is being preempted" if answer == "TRUE" else ""


def _azure(server: str) -> str:
    """Return an event of type Preempt, announced 30 s before."""
    answer = _ask(f"{server}/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    found = json.loads(answer) if answer else {}
    if not isinstance(found, dict):
        raise ValueError("the answer is no object")
    events = found.get("Events")
    for each in events if isinstance(events, list) else []:
        if isinstance(each, dict) and each.get("EventType") == "Preempt":
            return _text(f"Azure: Preempt, not before {each.get('NotBefore') or 'now'}")
    return ""


_CLOUDS: Mapping[str, Callable[[str], str]] = MappingProxyType({"aws": _aws, "gcp": _gcp, "azure": _azure})


def _ask(url: str, headers: Mapping[str, str], *, method: str = "GET") -> str:
    """Return the answer; empty for 404. Raises OSError, HTTPException or ValueError."""
    reply = ask(url, seconds=_TIMEOUT_SECONDS, most_bytes=_MOST_BYTES, headers=headers, method=method)
    if reply.status == HTTPStatus.NOT_FOUND:
        return ""
    if not 200 <= reply.status < 300:
        raise ValueError(f"HTTP Error {reply.status}: {reply.reason}")
    return reply.body.decode()


def _text(text: str) -> str:
    return printable(text)[:_MOST_TEXT]
