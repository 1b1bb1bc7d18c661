"""The causes of a slow run, one per file: each test takes a case and returns a candidate or None."""
