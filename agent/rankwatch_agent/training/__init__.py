"""From the records of a black box to the figures of a rank."""
