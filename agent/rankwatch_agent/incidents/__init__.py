"""Incidents: runs of this node that stall or lose a rank, and a bundle of evidence for each."""
