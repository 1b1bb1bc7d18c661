"""Which RAS services to ask: `auto`, or HOST:PORT as the job's NCCL_RAS_ADDR has it."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from rankwatch_agent.runtime.config.error import ConfigError

AUTO = "auto"
DEFAULT_PORT = 28028
"""NCCL's own, where NCCL_RAS_ADDR is not set."""
MAX_ADDRESSES = 8
"""More jobs share no node: each has one GPU at least."""


class Address(NamedTuple):
    """Where a RAS service listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def local(self) -> bool:
        """Whether it is an address of the node itself, so that every node of a job has such a service."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"


def parse_addresses(texts: tuple[str, ...]) -> tuple[Address, ...]:
    """The services, each once; raises ConfigError."""
    found = tuple(dict.fromkeys(_parse(text) for text in texts))
    if len(found) > MAX_ADDRESSES:
        raise ConfigError("nccl_ras_address", ",".join(texts), f"at most {MAX_ADDRESSES} addresses")
    return found


def _parse(text: str) -> Address:
    if text == AUTO:
        return Address("localhost", DEFAULT_PORT)
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") == host.endswith("]") and (":" not in bare or host.startswith("["))
    number = int(port) if port.isascii() and port.isdigit() and len(port) < 6 else 0
    sound = bare.isascii() and bare.isprintable() and " " not in bare and bare != "" and len(bare) < 254
    if not (bracketed and sound and 0 < number < 65536):
        raise ConfigError("nccl_ras_address", text, f"{AUTO} or HOST:PORT, several with commas between")
    try:
        bare.encode("idna")
    except UnicodeError:
        raise ConfigError("nccl_ras_address", text, f"{AUTO} or HOST:PORT") from None
    return Address(bare, number)
