"""Every setting of the agent, with its default; the docstrings are also the --help texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from rankwatch.conventions import environment
from rankwatch_agent.config.error import ConfigError
from rankwatch_agent.supervision.schedule import DEFAULT_SCHEDULES, Schedule

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


def _node_name() -> str:
    return os.uname().nodename


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The agent's settings; raises ConfigError naming the field that cannot be used."""

    listen: str = "0.0.0.0:9477"
    """HOST:PORT to serve on; port 0 takes a free one; an IPv6 host stands in brackets."""
    address_file: Path | None = None
    """File that receives HOST:PORT once the agent listens, written atomically."""
    max_requests: int = 16
    """Requests answered at the same time; one more gets status 503."""
    request_timeout_seconds: float = 10.0
    """Longest life of a connection in seconds."""
    directory: Path = environment.DEFAULT_DIRECTORY
    """Directory of the black boxes."""
    node: str = field(default_factory=_node_name)
    """Value of the label node; the host name unless given."""
    cluster: str = ""
    """Value of the label cluster; empty leaves the label out."""
    collectors: tuple[str, ...] = tuple(DEFAULT_SCHEDULES)
    """Collectors to run."""
    disabled_collectors: tuple[str, ...] = ()
    """Collectors not to run, taken away from collectors."""
    intervals_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds between the starts of two runs, by collector, where not the default."""
    deadlines_seconds: Mapping[str, float] = field(default_factory=dict)
    """Longest run in seconds, by collector, where not the default."""
    checkpoint_paths: tuple[Path, ...] = ()
    """Absolute paths that hold checkpoints, as the host sees them; the disk collector watches each."""
    network_include: tuple[str, ...] = ()
    """Names (globs) of interfaces to watch; where empty, those with hardware behind them."""
    network_exclude: tuple[str, ...] = ("lo",)
    """Names (globs) of interfaces not to watch."""
    procfs: Path = Path("/proc")
    """Where the host's /proc is mounted."""
    sysfs: Path = Path("/sys")
    """Where the host's /sys is mounted."""
    rootfs: Path = Path("/")
    """Where the host's root is mounted; checkpoint_paths are looked up below it."""
    retention_seconds: float = 3600.0
    """Seconds after its end at which a run is forgotten and its black boxes are removed."""
    max_runs: int = 100
    """Runs exported at the same time; the most recent ones win."""
    max_names: int = 64
    """Distinct names of scalars, work units and process groups exported for one rank."""
    log_level: str = "info"
    """Least severe message in the log: debug, info, warning or error."""
    log_format: str = "text"
    """Form of the log: text or json."""

    def __post_init__(self) -> None:
        self._check_address()
        self._check_collectors()
        for name in ("max_requests", "max_runs", "max_names"):
            self._expect(name, getattr(self, name) >= 1, "a whole number of at least 1")
        for name in ("request_timeout_seconds", "retention_seconds"):
            self._expect(name, 0 < getattr(self, name) < float("inf"), "a number of seconds above 0")
        self._expect("node", bool(self.node), "a name")
        self._expect("collectors", bool(self.enabled_collectors()), "at least one that is not disabled")
        for path in self.checkpoint_paths:
            self._expect("checkpoint_paths", path.is_absolute(), "absolute paths")
        self._expect("log_level", self.log_level in LOG_LEVELS, f"one of {', '.join(LOG_LEVELS)}")
        self._expect("log_format", self.log_format in LOG_FORMATS, f"one of {', '.join(LOG_FORMATS)}")

    def address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    def schedule(self, collector: str) -> Schedule:
        """Interval and deadline of a collector, after the settings."""
        default = DEFAULT_SCHEDULES[collector]
        return Schedule(
            self.intervals_seconds.get(collector, default.interval_seconds),
            self.deadlines_seconds.get(collector, default.deadline_seconds),
        )

    def enabled_collectors(self) -> tuple[str, ...]:
        """Names of the collectors to run, in their fixed order."""
        return tuple(
            name
            for name in DEFAULT_SCHEDULES
            if name in self.collectors and name not in self.disabled_collectors
        )

    def _check_address(self) -> None:
        host, _, port = self.listen.rpartition(":")
        bare = host.startswith("[") == host.endswith("]") and (":" not in host or host.startswith("["))
        known = bool(host) and bare and port.isascii() and port.isdigit() and int(port) <= 65535
        self._expect("listen", known, "HOST:PORT with a port from 0 to 65535")

    def _check_collectors(self) -> None:
        known = f"names out of {', '.join(DEFAULT_SCHEDULES)}"
        for name in ("collectors", "disabled_collectors", "intervals_seconds", "deadlines_seconds"):
            self._expect(name, set(getattr(self, name)) <= set(DEFAULT_SCHEDULES), known)
        for name in ("intervals_seconds", "deadlines_seconds"):
            inside = all(0 < seconds < float("inf") for seconds in getattr(self, name).values())
            self._expect(name, inside, "numbers of seconds above 0")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(name, getattr(self, name), expected)


FIELD_NAMES: tuple[str, ...] = tuple(each.name for each in fields(AgentConfig))
"""Names of all settings, in the order of the help."""
