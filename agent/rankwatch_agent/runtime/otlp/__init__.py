"""Sends snapshots over OTLP/HTTP. Imported only if an endpoint is set, because the SDK takes memory."""
