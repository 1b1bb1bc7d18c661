"""PyTorch's flight recorder, asked over the unix socket that each rank serves."""
