"""The HTTP API with nothing but the standard library, as any language can speak it.

Needs a server: `holdfast serve --data ./data`. HOLDFAST_URL names another one.
"""

import json
import os
import urllib.error
import urllib.request

URL = os.environ.get("HOLDFAST_URL", "http://localhost:7077")


def post(path: str, body: object) -> dict:
    """curl -d BODY URL/PATH"""
    try:
        with urllib.request.urlopen(f"{URL}{path}", json.dumps(body).encode(), timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        return json.load(refused)


messages = [{"payload": {"to": "ada"}, "idempotency_key": "welcome-ada"}, {"payload": {"to": "grace"}, "priority": 10}]
for each in post("/v1/queue/enqueue", {"queue": "mail", "messages": messages})["messages"]:
    print("enqueued", each["id"])

claimed = post("/v1/queue/dequeue", {"queue": "mail", "limit": 10, "wait_ms": 5_000, "lease_ms": 30_000})["messages"]
for each in claimed:
    print("claimed", each["payload"], "attempt", each["attempt"], "version", each["version"])

# The first is done; the second failed and comes back at once.
first, second = (each["receipt"] for each in claimed)
print(post("/v1/queue/ack", {"queue": "mail", "receipts": [first]})["results"][0]["ok"])
nack = {"receipt": second, "error": "mailbox full", "delay_ms": 0}
print(post("/v1/queue/nack", {"queue": "mail", "receipts": [nack]})["results"][0]["state"])

# An ack comes too late once the message was given back: 409, and nothing changes.
print(post("/v1/queue/ack", {"queue": "mail", "receipts": [second]})["error"]["code"])

# A verdict may ride on the next claim, to save a request.
[again] = post("/v1/queue/dequeue", {"queue": "mail"})["messages"]
verdicts = [{"receipt": again["receipt"], "verdict": "ack"}]
print(post("/v1/queue/dequeue", {"queue": "mail", "verdicts": verdicts})["results"][0]["ok"])
