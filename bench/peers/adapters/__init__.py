"""One module for each family of systems: how its server is started, and how a client calls it.

Adapters make no measurements; `load.py` and `run.py` do. Start reading in `bench/peers/contract.py`.
"""
