"""From a snapshot to what a scraper reads."""
