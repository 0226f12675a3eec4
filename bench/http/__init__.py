"""The HTTP door and its clients beside bare sockets and a bare echo.

Measures and prints; asserts nothing.
Start with `door.py`.
"""
