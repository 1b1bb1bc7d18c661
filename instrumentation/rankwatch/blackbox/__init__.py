"""The black box: a file per rank that survives its writer. `layout` documents every byte."""
