"""The `rankwatch` command. It stands on top of every other package and imports them lazily."""
