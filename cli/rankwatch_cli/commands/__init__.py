"""Subcommands of `rankwatch`, one per file, each with `main(arguments) -> exit status`."""
