"""`rankwatch demo`: a real run, a fault injected at random, and the alert that names the rank."""
