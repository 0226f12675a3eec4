"""The part of a remote client that all protocols share: retries, shared requests, cancellation, and giving back.

It knows no protocol; a protocol writes requests, reads responses, and decides nothing about retries.
Start with `calls.py`.
"""
