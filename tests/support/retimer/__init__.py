"""Re-times recorded jobs: the program of a table, its replay, injected faults, the table written again.

Nothing here is shared with the straggler engine or the simulator, so that it can judge both. A table comes
from `OperationTable`; everything else is inferred here, and a fault is true because the replay says so.
"""
