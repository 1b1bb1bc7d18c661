"""The one room for what another user of the node can write, or exchange while it is used."""
