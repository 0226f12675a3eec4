"""Put the parts together: settings, the core of a store with its services, the embedded core and the server.

It decides nothing about messages, and nothing below imports it.
Start reading at `compose.py`, then `run.py`.
"""
