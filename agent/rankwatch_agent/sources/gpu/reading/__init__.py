"""What the NVML worker reads. It runs only in the worker process and imports little."""
