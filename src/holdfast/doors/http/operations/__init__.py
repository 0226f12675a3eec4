"""Handle HTTP routes: decode the request, call the service once, encode the response.

Makes no decisions: the service does.
Start with `messages.py` for the hot routes and `table_routes.py` for most others.
"""
