"""Holdfast beside the durable queues that people would otherwise choose, measured in turn on the same machine.

Clients run in processes of their own; rates and processor time are read from outside. Nothing is installed here: a peer
whose program is missing is named and left out. Start reading in `systems.py`, then `scenarios.py` and `goals.py`.
"""
