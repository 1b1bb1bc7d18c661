"""The node that the readings are taken from."""

from support.gpu.reading import node

__all__ = ["node"]
