"""Runs the doors of a server in processes of their own (`holdfast serve --processes N`), in front of the store process.

A door process parses, checks identity and encodes. It decides nothing: permissions, limits and waits are the store's.
Start reading at `supervisor.py` (the store process's side), then `door_process.py` and `relay.py` (the other side).
"""
