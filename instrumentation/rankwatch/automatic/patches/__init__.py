"""What zero-code recording patches in torch and other libraries. `installing` has the list."""
