"""Recording through the hooks of frameworks, one module each. Importing this package imports none of them."""
