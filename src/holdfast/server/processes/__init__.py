"""Run the doors of a server in processes of their own (`holdfast serve --processes N`), in front of the store process.

A door process parses, checks identity and encodes. It decides nothing: the store process checks permissions and
limits, and holds waiting claims.
Start reading at `supervisor.py` for the store process, then `door_process.py` and `relay.py` for a door process.
"""
