"""Read and write the sockets of doors that own their connections, and run calls without a task.

Knows no protocol.
Start with `response_writer.py`.
"""
