"""The lake: tables on files. Each change is one commit, which also contains the position of its writer.

It must not know queues.
Start reading at `contract.py`, then `lake.py`.
"""
