"""Statistics that network drivers keep under names of their own, as `ethtool -S` shows them."""
