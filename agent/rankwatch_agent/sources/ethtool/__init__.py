"""Statistics of network drivers, as `ethtool -S` shows them."""
