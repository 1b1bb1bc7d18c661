"""XID errors: what the codes mean, and how often each GPU reported one."""
