"""Who uses which GPU: pods by the kubelet, SLURM jobs by a map of files or by the processes' environment."""
