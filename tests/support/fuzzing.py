"""Settings of Hypothesis for busy machines: how long an example takes is no fault of what is tested."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

BUSY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline for an example, none for making it up."""
