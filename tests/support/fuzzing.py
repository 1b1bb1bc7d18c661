"""Settings of Hypothesis for busy machines, and JSON that is nested just as deep as Python allows."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

BUSY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No deadline for an example, none for making it up: how long it takes is no fault of what is tested."""
NESTED = tuple("[" * depth + "1" + "]" * depth for depth in range(800, 1000))
"""At one of these depths a decoder is at Python's limit. What then goes through its result, as str() does, is
beyond it."""
