"""How long the layers take: asleep on an emulated device, longer than they need on a straggler."""
