"""The node agent: reads black boxes and hardware, exports metrics, keeps evidence of incidents.

Importing it, or any module below it, starts and reads nothing. It never imports torch or NumPy.
"""
