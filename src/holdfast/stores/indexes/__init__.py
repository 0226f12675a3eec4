"""In-memory indexes that several stores share: a queue's messages by order of delivery, schedules by next tick.

Nothing here is durable or awaits anything; a store fills an index from its stored messages and schedules.
Start with `queue_orders.py`.
"""
