"""Checkpoints that are either whole and verified, or not there."""
