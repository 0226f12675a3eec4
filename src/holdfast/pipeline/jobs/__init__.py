"""The jobs: functions of a Spark session, a lake and a source. Each returns counts that must agree.

They must not start Spark, open a server or print.
Start reading at `archive.py`, then `progress.py`.
"""
