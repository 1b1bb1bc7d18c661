"""The error of a wrong configuration."""

from __future__ import annotations

from pathlib import PurePath

from rankwatch_agent.runtime.errors import UserError


def _plain(value: object) -> object:
    """Paths as the text they were given as."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value) if isinstance(value, PurePath) else value


class ConfigError(UserError):
    """A field, its value, where the value came from (where known), and what was expected."""

    def __init__(self, field: str, value: object, expected: str, origin: str = "") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        shown = repr(_plain(value))
        if len(shown) > 200:
            shown = shown[:200] + "..."
        source = f" from {origin}" if origin else ""
        super().__init__(f"could not use {field} = {shown}{source}: expected {expected}")

    def with_origin(self, origin: str) -> ConfigError:
        """The same error, saying where the value came from."""
        return ConfigError(self.field, self.value, self.expected, origin)
