"""What doors that read and write their own connections share: writing, reading, and calls without a task.

No protocol is known here. Start with `response_writer.py`.
"""
