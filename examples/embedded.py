"""A producer and a consumer in one program, no server: enqueue, claim, work, ack.

The queues are kept in a directory and are there again when the program is started again. `memory://` keeps them in
memory alone.
"""

import tempfile

import holdfast

with tempfile.TemporaryDirectory() as directory, holdfast.open(f"{directory}/data") as hf:
    payments = hf.queue("payments", tenant="acme")
    payments.enqueue([{"order": 7}, {"order": 8}, {"order": 9}])

    # Until nothing has come for a tenth of a second. A consumer that never ends: `for message in payments.subscribe()`.
    while messages := payments.claim(limit=2, lease="30s", wait=0.1):
        for message in messages:
            with message:  # acked when the block ends, nacked when it raises
                print(f"charging order {message.json()['order']}, attempt {message.attempt}")

    left = payments.stats()
    print(f"ready {left.ready}, in flight {left.in_flight}, failed {left.failed}")
