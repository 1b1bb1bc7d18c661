"""Grafana dashboards, generated from the same config object as the rules."""

from rankwatch_dashboards.generation import dashboards, write_dashboards

__all__ = ["dashboards", "write_dashboards"]
