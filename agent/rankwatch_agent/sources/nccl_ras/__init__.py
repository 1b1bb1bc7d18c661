"""NCCL's RAS service: asked over its text protocol, read in both of its forms, judged over several polls."""
