"""Incidents of the runs on this node, and the evidence that is kept of them."""
