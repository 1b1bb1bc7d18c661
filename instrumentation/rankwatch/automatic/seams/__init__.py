"""The places in torch and other libraries at which zero-code recording looks, one file each.

Each file has `targets`, which returns the modules that it waits for, each with a function that patches it.
"""
