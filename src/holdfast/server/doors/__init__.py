"""Bind the ports of a server and run its doors on them, from the first caller to the last response.

Nothing here knows which store is behind a door: a door is given a `Backend`.
Start reading at `doors.py`.
"""
