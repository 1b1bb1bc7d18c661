"""Settings of the servers among which the rules are divided, where one Prometheus is too small."""

from __future__ import annotations

from dataclasses import dataclass

from rankwatch.settings import expect
from rankwatch_alerts.delivery import HOST_PORT

SHARDS_JOB, FLEET_JOB = "rankwatch-shards", "rankwatch-fleet"
"""Values of `job` where one of these servers reads what the others record."""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """Addresses of the servers, as they reach each other."""

    prometheus_shards: tuple[str, ...] = ()
    """Prometheus servers (`host:port`) that share the runs, where one is too small for all of them: at least
    two. Their configuration is then generated, too."""
    prometheus_fleet: str = ""
    """The Prometheus (`host:port`) beside these shards that has the machines and adds up runs."""
    alertmanager_address: str = "localhost:9093"
    """Where shards and fleet find Alertmanager (`host:port`)."""

    def check_servers(self) -> None:
        """Raise FieldError for what is no address, and for shards without a fleet server."""
        shards, fleet = self.prometheus_shards, self.prometheus_fleet
        addresses = all(map(HOST_PORT.fullmatch, shards)) and len({*shards, fleet}) > len(shards)
        expected = "host:port of two or more servers, none of them twice or prometheus_fleet"
        expect(self, "prometheus_shards", not shards or (addresses and len(shards) > 1), expected)
        expected = "host:port, because prometheus_shards names shards" if shards else "host:port, or nothing"
        valid = bool(HOST_PORT.fullmatch(fleet)) or not (shards or fleet)
        expect(self, "prometheus_fleet", valid, expected)
        alertmanager = bool(HOST_PORT.fullmatch(self.alertmanager_address))
        expect(self, "alertmanager_address", alertmanager, "host:port")
