"""Where everything lies. Ids are the snowflake in 19 decimal digits: listings come in their order.

    <tenant>/tenant.json                    the tenant: its number, its config, its queues and their numbers
    <tenant>/room.pb                        what a tenant with quotas had room for last: checks take turns by it
    <tenant>/q/<queue>/policy.json          the queue: number, policy, paused, draining
    <tenant>/q/<queue>/msg/<id>.pb          a message's metadata: the truth about it
    <tenant>/q/<queue>/msg/<id>.bin         its payload
    <tenant>/q/<queue>/state/<id>.json      its state document
    <tenant>/q/<queue>/dlq/msg/<id>.pb …    the same three of a dead letter
    <tenant>/q/<queue>/key/<hash>.pb        an idempotency key that was seen
    <tenant>/q/<queue>/group/<hash>.pb      the batch of a FIFO group that is in flight
    <tenant>/q/<queue>/group/<hash>/<id>    a message of the group: lists them by id
    <tenant>/q/<queue>/ledger/<hash>.pb     a consumer's numbered claims
    <tenant>/q/<queue>/schedule/<name>.pb   a schedule
    .holdfast/tenants.json                  the highest tenant number
    .holdfast/node/<number>.pb              who has a node number
    .holdfast/step/<id>.pb                  whether a change of several documents holds
    .holdfast/journal/<number>.pb           events, in segments
    .holdfast/journal.json                  up to which segment the outboxes are emptied

No tenant's name begins with a dot, and no name has a slash: no key of one tenant or queue is another's.
"""

from hashlib import blake2b

from holdfast.model.names import QueueRef

OWN = ".holdfast/"
TENANTS = OWN + "tenants.json"
NODES = OWN + "node/"
STEPS = OWN + "step/"
JOURNAL = OWN + "journal/"
JOURNAL_HEAD = OWN + "journal.json"

METADATA = ".pb"
PAYLOAD = ".bin"


def own_name(key: str) -> str:
    """The last part of a key, without its ending."""
    return key[key.rfind("/") + 1 :].partition(".")[0]


def hashed(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def digits(number: int) -> str:
    return f"{number:019}"


def node(number: int) -> str:
    return f"{NODES}{number:04}.pb"


def step(id: str) -> str:
    return f"{STEPS}{id}.pb"


def segment(number: int) -> str:
    return f"{JOURNAL}{digits(number)}.pb"


def tenant(name: str) -> str:
    return f"{name}/tenant.json"


def is_tenant(key: str) -> bool:
    return key.endswith("/tenant.json") and key.count("/") == 1


def room(name: str) -> str:
    return f"{name}/room.pb"


def queue(ref: QueueRef) -> str:
    return f"{ref.tenant}/q/{ref.queue}/"


def parse_queue(key: str) -> QueueRef:
    """Of a key below a queue."""
    tenant_name, _, queue_name, _ = key.split("/", 3)
    return QueueRef(tenant_name, queue_name)


def policy(ref: QueueRef) -> str:
    return queue(ref) + "policy.json"


def messages(ref: QueueRef, *, dead: bool = False) -> str:
    return queue(ref) + ("dlq/msg/" if dead else "msg/")


def beside_messages(ref: QueueRef) -> list[str]:
    """Where everything lies that is of one message."""
    return [messages(ref), messages(ref, dead=True), queue(ref) + "state/", queue(ref) + "dlq/state/", groups(ref)]


def message(ref: QueueRef, id: int, *, dead: bool = False) -> str:
    return messages(ref, dead=dead) + digits(id) + METADATA


def payload_of(message_key: str) -> str:
    return message_key.removesuffix(METADATA) + PAYLOAD


def state_of(message_key: str) -> str:
    head, _, name = message_key.rpartition("msg/")
    return f"{head}state/{name.removesuffix(METADATA)}.json"


def is_dead(message_key: str) -> bool:
    return "/dlq/msg/" in message_key


def is_message(key: str) -> bool:
    return "/msg/" in key and key.endswith(METADATA)


def parse_message(key: str) -> int | None:
    """The id, if it is a message's metadata."""
    return int(own_name(key)) if key.endswith(METADATA) else None


def parse_id(key: str) -> int | None:
    """Of whatever is of one message: the id, if it has one."""
    digits_of = own_name(key).partition("-")[0]
    return int(digits_of) if digits_of.isdecimal() else None


def keys(ref: QueueRef) -> str:
    return queue(ref) + "key/"


def key(ref: QueueRef, text: str) -> str:
    return keys(ref) + hashed(text) + METADATA


def groups(ref: QueueRef) -> str:
    return queue(ref) + "group/"


def group(ref: QueueRef, name: str) -> str:
    return groups(ref) + hashed(name) + METADATA


def group_members(ref: QueueRef, name: str) -> str:
    return f"{groups(ref)}{hashed(name)}/"


def group_member(ref: QueueRef, name: str, id: int) -> str:
    return group_members(ref, name) + digits(id)


def ledger(ref: QueueRef, consumer: str) -> str:
    return f"{queue(ref)}ledger/{hashed(consumer)}.pb"


def schedules(ref: QueueRef) -> str:
    return queue(ref) + "schedule/"


def schedule(ref: QueueRef, name: str) -> str:
    return f"{schedules(ref)}{name}.pb"
