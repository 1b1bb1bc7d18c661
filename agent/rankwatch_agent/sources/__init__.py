"""One home per source: a collector beside the parsers that only it uses."""
