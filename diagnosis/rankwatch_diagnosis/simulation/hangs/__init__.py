"""Simulated hangs and desynchronised collectives, as the snapshots that torch's flight recorder leaves."""
