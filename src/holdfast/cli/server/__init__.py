"""Commands for running a server: `serve`, `token`, `doctor` and `bench`.

They must not import the server's packages before the command runs.
Start reading at `serve.py`.
"""
