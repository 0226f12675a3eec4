"""`holdfast pipeline`: the Spark jobs as commands.

It must not import Spark before a job runs, and holds no job itself: those are in `holdfast.pipeline`.
Start reading at `command.py`.
"""
