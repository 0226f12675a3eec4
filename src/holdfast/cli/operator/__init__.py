"""Commands that change queues and their messages: `policy`, `pause`, `purge`, `dlq`, `schedule` and more.

They must not bypass the client: every change is an operation of `wire/operations.py`.
Start reading at `queues.py`.
"""
