"""The rank's GPU as the training uses it: the timeline of its compute stream, and CUDA itself."""
