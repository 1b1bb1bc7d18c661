"""Sends snapshots over OTLP/HTTP. Imported only where an endpoint is set: the SDK takes memory."""
