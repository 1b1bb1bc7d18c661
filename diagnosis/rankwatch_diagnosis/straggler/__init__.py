"""From a table of operations to a verdict on what slows the run down."""
