"""Commands that show queues, messages and events: `queues`, `list`, `inspect`, `tail`, `top` and more.

They must not change a queue or lease a message.
Start reading at `queues.py`.
"""
