"""A run as a trace that Perfetto and chrome://tracing open, from its black boxes."""
