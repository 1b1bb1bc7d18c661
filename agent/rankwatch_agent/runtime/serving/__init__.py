"""Serves the last snapshot over HTTP; nothing is collected for a request."""
