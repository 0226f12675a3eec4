"""Handle one claimed message, from the start of its handler to its outcome.

Claims no messages; sends verdicts only through `verdict_sender.py`.
Start with `executor.py`.
"""
