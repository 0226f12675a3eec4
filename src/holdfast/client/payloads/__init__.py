"""Payloads between programs and the wire: encoded, uploaded from a source, read part by part.

Knows no protocol.
Start with `encoding.py`.
"""
