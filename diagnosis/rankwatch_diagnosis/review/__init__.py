"""The review of a run: what happened when, what it cost, and by which evidence."""
