"""The relay of what a dcgm-exporter on the same node knows and NVML does not."""
