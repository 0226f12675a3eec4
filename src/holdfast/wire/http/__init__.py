"""Define the JSON documents of HTTP requests and responses, and convert them to and from the model's types.

Shared by the HTTP door and the HTTP client; opens no connection and makes no decisions.
Start with `bodies.py`, then `routes.py`, which binds a request to a method and path.
"""
