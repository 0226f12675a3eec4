"""Payloads between programs and the network: encoded, uploaded from a source, and read in parts.

It must not know a protocol.
Start with `encoding.py`.
"""
