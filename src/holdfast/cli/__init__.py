"""The `holdfast` command: the table of commands, the connection they share, and their output.

It must not import a command's module, a store or a server before they are needed: `holdfast --help` loads neither.
Start reading at `main.py`, then `commands.py`, the table of commands.
"""
