"""A schedule enqueues a message at every tick, once, however many processes look after the queue.

Ticks are by interval or by cron line. A schedule is stored with its queue: it continues after a restart.
"""

import holdfast

with holdfast.open("memory://") as hf:
    reports = hf.queue("reports")
    reports.schedule("heartbeat", every="1s", payload={"kind": "heartbeat"})
    reports.schedule("nightly", cron="0 3 * * *", timezone="Europe/Berlin", payload={"kind": "nightly"})

    for _ in range(2):
        [message] = reports.claim(wait=30)
        with message:
            print("tick:", message.json())

    for schedule in reports.schedules():
        print("schedule:", schedule.name)
    reports.schedule("heartbeat", paused=True)
    reports.unschedule("nightly")
