"""The report: figures from a lake's events, and one HTML page with plots.

It must not read or change a queue.
Start reading at `facts.py`, then `page.py`.
"""
