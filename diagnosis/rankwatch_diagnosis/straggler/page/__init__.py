"""A page that shows a verdict: heat map of ranks, critical path, causes. One file, which loads nothing."""
