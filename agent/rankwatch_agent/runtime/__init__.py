"""What every part of the agent stands on: the collector contract, supervision, config, export, serving."""
