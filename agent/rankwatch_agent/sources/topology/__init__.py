"""Where devices sit on the PCI bus, and how far from each other."""
