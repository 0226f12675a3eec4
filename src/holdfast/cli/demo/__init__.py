"""`holdfast demo`: producers, workers, a killed worker, and an audit of the result.

It must not be imported by other commands, except by `holdfast pipeline demo`.
Start reading at `command.py`, then `run.py`.
"""
