"""Laws of one message's life: its states, leases, retries, dead letters and state document.

A law must not know a store: it uses the public async API and moves the subject's clock.
Start in `states.py`.
"""
