"""Ports of RDMA devices (InfiniBand, RoCE, EFA) as sysfs shows them."""
