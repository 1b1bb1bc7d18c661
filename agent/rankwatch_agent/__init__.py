"""The node agent: reads black boxes and hardware, exports metrics; home of the `rankwatch` command.

Importing it, or any module below it, starts and reads nothing. It never imports torch.
"""
