"""The lake: tables whose every change is one commit, with the position of its writer in it.

Nothing here knows queues.
Start reading at `contract`, then `lake`.
"""
