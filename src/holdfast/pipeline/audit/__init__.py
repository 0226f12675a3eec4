"""The audit's rules: their names, the screen that finds suspect messages, and the checks of their events.

Nothing here reads a journal or writes to the lake; the job `audit` does.
Start reading at `rules`.
"""
