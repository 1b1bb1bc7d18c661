"""The causes a run may be slow by, one a file."""
