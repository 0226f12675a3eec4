"""The audit's rules: their names, the screen that finds suspect messages, and the checks of their events.

It must not read a journal or write to the lake: the job `audit` does.
Start reading at `rules.py`.
"""
