"""Simulated training jobs with a known fault: the truth that a diagnosis is judged by.

Needs NumPy. The agent that runs on nodes never imports it.
"""
