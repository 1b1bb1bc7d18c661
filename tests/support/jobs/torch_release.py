"""What the installed release of PyTorch can do, for tests that need it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NO_GLOO_RECORDER = "torch before 2.10 serves no flight recorder of gloo"
"""Why a test is skipped where `serves_gloo_recorder` says no."""


def serves_gloo_recorder() -> bool:
    """Whether the worker server has the handler `fr_trace_json`. Asked of the version: were it asked of the
    server, a release that lost the handler would skip the tests instead of failing them."""
    try:
        major, minor = version("torch").split(".")[:2]
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (2, 10)
