"""The sources of a node's metrics. Each collector lives beside the parsers that only it uses."""
