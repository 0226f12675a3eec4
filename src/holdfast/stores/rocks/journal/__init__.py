"""The journal: the events of each commit as one block, and how they are read.

Trims old blocks, and changes nothing else.
Start with `journal.py`.
"""
