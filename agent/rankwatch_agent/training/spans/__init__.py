"""From the records of black boxes to spans of traces. Nothing here waits for a receiver."""
