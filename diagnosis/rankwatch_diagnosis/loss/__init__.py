"""From a table or a log of losses to alarms: divergence, spikes, NaN, norms that jump, loss scales."""
