"""The goodput of a run as a page in one file."""
