"""Fixtures of every test that needs a driver: the fake NVML library and a node behind it."""

from support.gpu.nvml import fake_driver, nvml_library

__all__ = ["fake_driver", "nvml_library"]
