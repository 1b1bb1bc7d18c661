"""Where GPUs and NICs sit on the PCI bus, and how far they are from each other."""
