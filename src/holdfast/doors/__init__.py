"""Speak a protocol: read calls from the network, pass them to the service, write the responses.

A door makes no decisions, reaches no deeper than the service, and never imports another door.
Start with `http/app.py`.
"""
