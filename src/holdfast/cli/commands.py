"""The table of commands: the name, help panel, module and summary of each. A command's module is imported when it runs.

`holdfast --help` and shell completion read this table only. A test compares every summary with its command's docstring.
"""

from typing import NamedTuple

MESSAGES = "Messages"
INSPECT = "Inspect"
OPERATE = "Operate"
STORE = "Server and store"


class CommandRow(NamedTuple):
    """A command that has not been imported."""

    panel: str
    # Relative to `holdfast.cli`.
    module: str
    # The first paragraph of the command's docstring, or a group's help.
    summary: str
    # The function's name in the module, if it differs from the command's name.
    attribute: str | None = None
    # True if the function's first parameter is a CommandSession.
    has_session: bool = True
    # True if the command may create the directory of an embedded store.
    may_create: bool = False
    # True if the command, with the usual arguments, changes nothing: a directory of the legacy layout stays as it is.
    only_looks: bool = False
    # The name in the module of the class that parses the command line, if it is not QuickCommand.
    parsed_by: str | None = None


COMMANDS: dict[str, CommandRow] = {
    "enqueue": CommandRow(
        MESSAGES, "messages.enqueue", "Add messages to a queue, and print their ids.", may_create=True
    ),
    "dequeue": CommandRow(MESSAGES, "messages.dequeue", "Claim a message, and print it as variables for the shell."),
    "ack": CommandRow(
        MESSAGES, "messages.dequeue", "Acknowledge a claimed message: it succeeded, and is never delivered again."
    ),
    "nack": CommandRow(
        MESSAGES,
        "messages.dequeue",
        "Report that a claimed message failed: it is retried later, or becomes a dead letter after its last retry.",
    ),
    "extend": CommandRow(MESSAGES, "messages.dequeue", "Extend the lease of a claimed message."),
    "release": CommandRow(
        MESSAGES, "messages.dequeue", "Return a claimed message to its queue without counting the attempt."
    ),
    "state": CommandRow(
        MESSAGES, "messages.state", "Save the state document of a claimed message for its next attempt."
    ),
    "run": CommandRow(MESSAGES, "messages.run", "Run a program for each message until SIGTERM or Ctrl-C."),
    "worker": CommandRow(
        MESSAGES, "messages.worker", "Run a Python worker until SIGTERM or Ctrl-C.", has_session=False
    ),
    "queues": CommandRow(
        INSPECT, "inspection.queues", "List the tenant's queues with their message counts.", only_looks=True
    ),
    "stats": CommandRow(
        INSPECT,
        "inspection.queues",
        "Show the exact message counts of a queue, or of a tenant.",
        only_looks=True,
    ),
    "top": CommandRow(
        INSPECT,
        "inspection.top",
        "Show all queues live, with message counts, ages and rates. Press q to quit.",
        only_looks=True,
    ),
    "tail": CommandRow(
        INSPECT,
        "inspection.tail",
        "Print the events of messages as they happen.",
        only_looks=True,
    ),
    "list": CommandRow(
        INSPECT,
        "inspection.list",
        "List a queue's messages, oldest first, without claiming them.",
        attribute="list_",
        only_looks=True,
    ),
    "inspect": CommandRow(
        INSPECT,
        "inspection.inspect",
        "Show one message in full: its state, lease, payload and timeline.",
        only_looks=True,
    ),
    "peek": CommandRow(
        INSPECT,
        "inspection.queues",
        "Show the next messages of a queue with their payloads, without claiming them.",
        only_looks=True,
    ),
    "get": CommandRow(
        INSPECT, "inspection.queues", "Show one message of a queue, whatever its state.", only_looks=True
    ),
    "dlq": CommandRow(
        INSPECT,
        "operator.dead_letters",
        "List, show, redrive, remove or purge a queue's dead letters.",
        only_looks=True,
    ),
    "tenants": CommandRow(
        INSPECT, "inspection.queues", "List tenants; show or change one tenant's limits and quotas.", only_looks=True
    ),
    "policy": CommandRow(
        OPERATE, "operator.queues", "Show or change a queue's policy. A missing queue is created.", may_create=True
    ),
    "schedule": CommandRow(
        OPERATE, "operator.schedule", "List, create, change, pause or remove a queue's schedules.", may_create=True
    ),
    "redrive": CommandRow(
        OPERATE,
        "operator.dead_letters",
        "Return failed messages to their queue, with all their retries and a new time to live.",
    ),
    "pause": CommandRow(OPERATE, "operator.queues", "Pause a queue: claims return nothing until it is resumed."),
    "resume": CommandRow(OPERATE, "operator.queues", "Resume a paused queue."),
    "purge": CommandRow(
        OPERATE, "operator.queues", "Remove all ready and delayed messages of a queue, or all failed ones."
    ),
    "cancel": CommandRow(OPERATE, "operator.queues", "Remove the ready and delayed messages that match a filter."),
    "move": CommandRow(OPERATE, "operator.queues", "Move ready or failed messages to another queue."),
    "reprioritise": CommandRow(OPERATE, "operator.queues", "Change the priority of ready and delayed messages."),
    "delete": CommandRow(
        OPERATE, "operator.queues", "Delete a queue with all its messages, after messages in flight have been settled."
    ),
    "serve": CommandRow(
        STORE, "server.serve", "Serve queues to other programs.", has_session=False, parsed_by="ServeCommand"
    ),
    "doctor": CommandRow(
        STORE,
        "server.doctor",
        "Check versions, settings, the clock, the disk, and the server or store.",
        only_looks=True,
    ),
    "bench": CommandRow(STORE, "server.bench", "Measure the speed of enqueue, claim and ack for one caller."),
    "demo": CommandRow(
        STORE,
        "demo.command",
        "Run a demonstration: producers, workers, a killed worker and an audit.",
        has_session=False,
    ),
    "verify": CommandRow(
        STORE, "stores.verify_backup", "Check every invariant of a store, and list the violations.", has_session=False
    ),
    "backup": CommandRow(
        STORE, "stores.verify_backup", "Copy a store into a new directory, even while it is in use.", has_session=False
    ),
    "token": CommandRow(
        OPERATE, "server.token", "Create a token for callers of a server, or check one.", has_session=False
    ),
    "db": CommandRow(
        STORE,
        "stores.db",
        "Migrate a store to this version, show its schema version, or change its number of shards.",
        has_session=False,
    ),
    "pipeline": CommandRow(
        OPERATE,
        "pipeline.command",
        "Archive, audit, report on and move messages in bulk with Spark.",
        has_session=False,
    ),
}
