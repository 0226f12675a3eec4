"""The jobs: plain functions of a Spark session, a lake and a source; each returns counts that must agree.

Nothing here starts Spark, opens a server or prints.
Start reading at `archive`, then `progress`.
"""
