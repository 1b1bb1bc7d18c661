"""Features of the installed release of PyTorch that tests need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NO_GLOO_RECORDER = "torch before 2.10 serves no flight recorder of gloo"
"""Reason for skipping a test if `serves_gloo_recorder` is false."""


def serves_gloo_recorder() -> bool:
    """True if the worker server has the handler `fr_trace_json`, according to the version of torch.

    The server itself is not queried, because a release that lost the handler must fail the tests, not skip
    them.
    """
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (2, 10)
