"""GPUs by NVML: every driver call is made in a worker process that can be killed."""
