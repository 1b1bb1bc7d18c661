"""The reference trainer: a real distributed training run, instrumented, with faults on demand."""
