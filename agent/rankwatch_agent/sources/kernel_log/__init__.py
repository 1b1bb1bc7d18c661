"""The kernel's log: its records, the XID errors in them, and the lines that tell of other known faults."""
