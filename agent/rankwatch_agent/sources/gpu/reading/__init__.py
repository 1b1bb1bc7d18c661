"""What the NVML worker reads: one topic per file, all of them listed in `topics`."""
