"""The handlers of HTTP routes: one request decoded, one service call, one response encoded.

Decides nothing: the service does.
Start with `messages.py` for the hot routes and `table_routes.py` for all others.
"""
