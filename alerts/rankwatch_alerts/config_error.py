"""The error of a wrong rule configuration."""

from __future__ import annotations


class RuleConfigError(ValueError):
    """A setting of the rules that no rule could work with; names field, value and what was expected."""
