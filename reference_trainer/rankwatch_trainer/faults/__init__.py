"""Faults on demand: what can go wrong in a training run, made to go wrong at a given step."""
