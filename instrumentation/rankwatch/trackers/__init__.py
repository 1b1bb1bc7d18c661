"""Links between a run and its experiment trackers: MLflow, Weights & Biases, trackio, TensorBoard.

Nothing of a tracker is imported: what counts is what the process has loaded. Nothing here runs on the
training thread; the network is used at the exit of rank 0 only, for a bounded time.
"""
