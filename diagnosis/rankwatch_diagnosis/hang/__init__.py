"""From flight-recorder dumps of all ranks to a verdict on what a stalled run waits for."""
