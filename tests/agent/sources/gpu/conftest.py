"""The fake NVML library, its driver, and a node that is read in this process."""

from support.gpu.nvml import fake_driver, nvml_library
from support.gpu.reading import node

__all__ = ["fake_driver", "node", "nvml_library"]
