"""One program, no server: enqueue, claim, work, ack."""

import holdfast

with holdfast.open("memory://") as hf:
    payments = hf.queue("payments", tenant="acme")
    payments.enqueue([{"order": 7}, {"order": 8}, {"order": 9}])

    for message in payments.claim(limit=10, lease="30s"):
        with message:  # acked when the block ends, nacked when it raises
            print(f"charging order {message.json()['order']}, attempt {message.attempt}")

    print(payments.stats())
