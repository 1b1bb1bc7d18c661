"""The black box: one file per rank that survives its writer. `layout` documents every byte."""
