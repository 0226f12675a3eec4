"""Run a server whose store is divided among several processes (`holdfast serve --stores N`).

The started process has the first portion and coordinates the others. No call on an existing queue passes through it,
unless it has the queue: door processes call the process with the queue.
Start reading at `supervisor.py` (the started process), then `store_process.py` (another one) and `routes.py` (a door
process).
"""
