"""GPUs through NVML. Every driver call is made in a worker process that can be killed."""
