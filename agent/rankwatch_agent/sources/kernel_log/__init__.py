"""The kernel's log: its records, and the XID errors and other known faults in them."""
