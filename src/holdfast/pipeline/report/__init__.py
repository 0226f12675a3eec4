"""The report: tables of figures over a lake's events, and one HTML page with plots.

Nothing here changes a queue.
Start reading at `facts`, then `page`.
"""
