"""Divide the shards of a store among several processes: each opens its portion, and the first one coordinates them.

Nothing here knows how the processes reach each other: `calls.py` has their calls, and the server carries them.
Start reading at `store.py` (a portion), then `coordinator.py` (the process with the first portion).
"""
