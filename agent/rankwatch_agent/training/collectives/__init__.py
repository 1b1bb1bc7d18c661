"""From single collectives to the figures of a rank, and of the node's ranks together."""
