"""Order: by priority (0 to 255, lower first, 100 unless set), then by when a message became due, then by id.

A delayed message is invisible until it is due, and blocks no other. A group is handled strictly in order, one
batch at a time.
"""

import holdfast

with holdfast.open("memory://") as hf:
    jobs = hf.queue("jobs")
    jobs.enqueue("ordinary")
    jobs.enqueue("urgent", priority=10)
    jobs.enqueue("some day", priority=200)
    jobs.enqueue("urgent, but not yet", priority=10, delay="300ms")

    print([message.json() for message in jobs.claim(limit=10)])
    [late] = jobs.claim(wait=10)
    print([late.json()])

    ledger = hf.queue("ledger")
    ledger.enqueue(["deposit 10", "withdraw 10"], group="account-7")
    ledger.enqueue("deposit 5", group="account-8")
    [first] = ledger.claim(limit=1)
    [other] = ledger.claim(limit=10)  # account-7 waits for its first message
    print([first.json(), other.json()])
    first.ack()
    print([message.json() for message in ledger.claim(limit=10)])
