"""Bulk access without a server: messages loaded by COPY, and the journal read as Arrow.

Nothing here runs inside a server; everything except the rows' layout needs the spark extra.
Start reading at `loader.py`.
"""
