"""Zero-code recording: finds steps, phases and values of a training loop that calls nothing of rankwatch."""
