"""The table of commands: each one's name, panel, module and summary. A command's module is imported when it runs.

`holdfast --help` and shell completion need the table alone. A test holds every summary against its command's docstring.
"""

from typing import NamedTuple

MESSAGES = "Messages"
LOOK = "Look"
OPERATE = "Operate"
STORE = "Server and store"


class CommandRow(NamedTuple):
    panel: str
    # Below `holdfast.cli`.
    module: str
    # The first paragraph of the command's docstring, or a group's help.
    summary: str
    # The name in the module, where it is not the command's own.
    attribute: str | None = None
    # Whether the function's first parameter is a Session.
    has_session: bool = True
    # Whether it may create the directory of an embedded store.
    may_create: bool = False
    # The name in the module of the class that parses the command line, where it is not typer's.
    parsed_by: str | None = None


COMMANDS: dict[str, CommandRow] = {
    "enqueue": CommandRow(
        MESSAGES, "messages.enqueue", "Add messages to a queue; their ids are printed.", may_create=True
    ),
    "dequeue": CommandRow(MESSAGES, "messages.dequeue", "Take a message under a lease, for the commands that follow."),
    "ack": CommandRow(
        MESSAGES,
        "messages.dequeue",
        "Done: the message is never delivered again. The payload's temporary file is removed.",
    ),
    "nack": CommandRow(
        MESSAGES,
        "messages.dequeue",
        "It failed: the message comes back later, or goes to the dead letters when its retries are used up.",
    ),
    "extend": CommandRow(MESSAGES, "messages.dequeue", "Hold it longer: the lease runs out so long from now."),
    "release": CommandRow(
        MESSAGES, "messages.dequeue", "Give it back as if it had never been taken: nothing is counted."
    ),
    "state": CommandRow(
        MESSAGES,
        "messages.state",
        "Save the state document of a message that `dequeue` took: its next attempt finds it.",
    ),
    "run": CommandRow(MESSAGES, "messages.run", "Run a program for each message, until SIGTERM or Ctrl-C."),
    "worker": CommandRow(
        MESSAGES, "messages.worker", "Run a worker of Python handlers, until SIGTERM or Ctrl-C.", has_session=False
    ),
    "queues": CommandRow(LOOK, "inspection.queues", "The tenant's queues with their counts."),
    "stats": CommandRow(
        LOOK,
        "inspection.queues",
        "What is ready, delayed, in flight and failed: exact counts of a queue, or of a tenant.",
    ),
    "top": CommandRow(
        LOOK,
        "inspection.top",
        "The queues live: what is ready, delayed, in flight and failed, how old, and how fast. q ends it.",
    ),
    "tail": CommandRow(LOOK, "inspection.tail", "Follow what happens to messages, event by event."),
    "list": CommandRow(
        LOOK,
        "inspection.list",
        "List a queue's messages by id, the oldest first. Nothing is leased, and no payload is shown.",
        attribute="list_",
    ),
    "inspect": CommandRow(
        LOOK,
        "inspection.inspect",
        "Show everything about one message: its state, who holds it and until when, its payload, and what happened to "
        "it.",
    ),
    "peek": CommandRow(LOOK, "inspection.queues", "What would be claimed next, with payloads. Nothing is leased."),
    "get": CommandRow(LOOK, "inspection.queues", "One message, in whatever state it is. Exit code 3: there is none."),
    "dlq": CommandRow(
        LOOK, "operator.dead_letters", "A queue's dead letters: list them, show one, redrive, remove or purge them."
    ),
    "tenants": CommandRow(
        LOOK, "inspection.queues", "The tenants with their limits and quotas; or one of them, to see or to change."
    ),
    "policy": CommandRow(
        OPERATE,
        "operator.queues",
        "How a queue treats its messages; with FIELD=VALUE, change it. A queue that is not there yet is made.",
        may_create=True,
    ),
    "schedule": CommandRow(
        OPERATE,
        "operator.schedule",
        "A queue's schedules: list them, or make, change, pause or remove one. A tick enqueues once, however many "
        "servers.",
        may_create=True,
    ),
    "redrive": CommandRow(
        OPERATE,
        "operator.dead_letters",
        "Bring failed messages back, with a fresh retry budget and time to live. Ids stay the same.",
    ),
    "pause": CommandRow(
        OPERATE,
        "operator.queues",
        "Stop claims: they find nothing, and wait. Messages still come in; those in flight go on.",
    ),
    "resume": CommandRow(OPERATE, "operator.queues", "Let a paused queue go on."),
    "purge": CommandRow(
        OPERATE,
        "operator.queues",
        "Remove everything that is ready, delayed too; or everything that failed. Never what is in flight.",
    ),
    "cancel": CommandRow(
        OPERATE, "operator.queues", "Remove what is ready and matches; every condition given must hold."
    ),
    "move": CommandRow(
        OPERATE,
        "operator.queues",
        "Move what is ready, or failed, to another queue. Ids, counts and state documents go along.",
    ),
    "reprioritise": CommandRow(OPERATE, "operator.queues", "Give what is ready and matches another priority."),
    "delete": CommandRow(
        OPERATE,
        "operator.queues",
        "Delete a queue with all its messages. It drains first: nothing comes in, nothing is claimed.",
    ),
    "serve": CommandRow(
        STORE, "server.serve", "Serve queues over HTTP to other programs.", has_session=False, parsed_by="ServeCommand"
    ),
    "doctor": CommandRow(
        STORE,
        "server.doctor",
        "Check versions, settings, the clock, the disk, and the server or store. Exit code 4: something is wrong.",
    ),
    "bench": CommandRow(
        STORE, "server.bench", "Measure enqueue, claim and ack, in batches and one by one, as one caller sees them."
    ),
    "demo": CommandRow(
        STORE,
        "demo.command",
        "Run producers and workers of three tenants through a store, with a live view.",
        has_session=False,
    ),
    "verify": CommandRow(
        STORE, "stores.verify_backup", "Check every invariant of a store, and name what breaks one.", has_session=False
    ),
    "backup": CommandRow(
        STORE, "stores.verify_backup", "Copy a store into a new directory, while it is in use too.", has_session=False
    ),
    "token": CommandRow(
        OPERATE, "server.token", "Make a token for callers of a server, or explain one with --check.", has_session=False
    ),
    "db": CommandRow(
        STORE,
        "stores.db",
        "Make or look at the tables of a PostgreSQL store; bring an older directory up to date, or change its shards.",
        has_session=False,
    ),
    "pipeline": CommandRow(
        OPERATE,
        "pipeline.command",
        "Move and examine messages in bulk, on Spark: archive, audit, report and more.",
        has_session=False,
    ),
}
