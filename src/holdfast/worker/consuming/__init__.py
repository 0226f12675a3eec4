"""The worker's side of the queue: claims, waiting, and verdicts on their way back.

Runs no handler: `execution/` does.
Start with `consumer.py`.
"""
