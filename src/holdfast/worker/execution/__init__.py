"""One claimed message, from its handler's start to its outcome.

It must not claim messages; it sends a verdict only through `verdict_sender.py`.
Start reading at `executor.py`.
"""
