"""Tables of timed operations: what every rank did in every step."""
