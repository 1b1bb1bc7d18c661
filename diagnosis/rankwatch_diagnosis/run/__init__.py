"""Everything about a run at once, from a directory of black boxes, live or dead."""
