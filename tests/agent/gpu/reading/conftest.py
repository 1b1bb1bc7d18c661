"""The node that the readings are taken from."""

from support_gpu_reading import node

__all__ = ["node"]
