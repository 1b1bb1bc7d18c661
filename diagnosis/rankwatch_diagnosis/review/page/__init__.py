"""The review of a run as a page."""
