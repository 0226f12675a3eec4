"""The journal: the events of each commit, written as one block, and the reading of these blocks.

Changes only the journal, never a message.
Start with `journal.py`; `event_blocks.py` has the format of a block.
"""
