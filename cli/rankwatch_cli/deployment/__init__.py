"""What runs the agent in Kubernetes: one set of values, printed as plain manifests or as a kustomize tree."""
