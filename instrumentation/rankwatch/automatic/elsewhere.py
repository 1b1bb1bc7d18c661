"""Optimizers that step where the loop does not: inside of a backward pass, or in another thread."""

from __future__ import annotations

from rankwatch.automatic.iterations import Iterations


class Elsewhere:
    """Their steps, kept until the training thread comes to where they count."""

    def __init__(self) -> None:
        self.pending: dict[int, float] = {}
        """Moment of the step by optimizer."""

    def stepped(self, optimizer: int, moment: float) -> None:
        """An optimizer, named as `Iterations` names it, has stepped. Any thread calls this."""
        self.pending[optimizer] = moment

    def count(self, iterations: Iterations | None, moment: float = 0.0) -> None:
        """Count these steps as steps of the loop, ended at this moment or when the last one did. None: a
        framework counts its steps itself."""
        steps, self.pending = self.pending, {}
        if iterations is None:
            return
        for optimizer in steps:
            iterations.steps(optimizer)
            if not iterations.open:
                iterations.begin(moment or steps[optimizer])
        latest = max(steps.values())
        for optimizer in steps:
            iterations.stepped(optimizer, moment or latest)
