"""Settings of the dashboard tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let the SDK's own warning pass: it prefers its v2 model, which file provisioning refuses."""
    config.addinivalue_line("filterwarnings", "ignore:Prefer using dashboardv2:DeprecationWarning")
