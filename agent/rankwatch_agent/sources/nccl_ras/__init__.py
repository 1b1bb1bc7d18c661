"""NCCL's RAS service: asked over its text protocol, parsed in both of its forms, rated over several
answers.
"""
