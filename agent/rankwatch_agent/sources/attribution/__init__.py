"""Who uses which GPU: Kubernetes pods by the kubelet, SLURM jobs by a job map or the environment."""
