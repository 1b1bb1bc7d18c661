"""Ports of RDMA devices (InfiniBand, RoCE, EFA), read from /sys/class/infiniband."""
