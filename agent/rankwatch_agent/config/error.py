"""The error of a wrong configuration."""

from __future__ import annotations

from rankwatch_agent.user_error import UserError


class ConfigError(UserError):
    """A field, its value, where the value came from (where known), and what was expected."""

    def __init__(self, field: str, value: object, expected: str, origin: str = "") -> None:
        self.field = field
        self.value = value
        self.expected = expected
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        source = f" from {origin}" if origin else ""
        super().__init__(f"could not use {field} = {shown}{source}: expected {expected}")

    def with_origin(self, origin: str) -> ConfigError:
        """The same error, saying where the value came from."""
        return ConfigError(self.field, self.value, self.expected, origin)
