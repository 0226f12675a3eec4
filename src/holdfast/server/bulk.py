"""Open stores in bulk for the pipeline. No other module knows which concrete store a URL names."""

from collections.abc import Iterator

import holdfast
from holdfast.client.blocking import Holdfast
from holdfast.model.answers import Info
from holdfast.model.errors import InvalidArgument
from holdfast.model.names import QueueRef, parse_name
from holdfast.pipeline.sources.copies import StoredMessages
from holdfast.pipeline.sources.feed import Feed, HttpFeed
from holdfast.pipeline.sources.options import StoreAddress
from holdfast.pipeline.sources.segments import Log
from holdfast.pipeline.sources.sink import BulkMessageWriter, ClientMessageWriter, MessageWriter
from holdfast.server.settings import Settings
from holdfast.server.store_settings import OBJECT_SCHEMES
from holdfast.service.views import info_of


def open_feed(store: StoreAddress, tenant: str | None) -> Feed:
    """Open the journal of a store, for one tenant or for all. Raise `InvalidArgument` for a store without a journal."""
    if store.is_http:
        return HttpFeed(store, tenant)
    if tenant is not None:
        parse_name("tenant", tenant)
    if store.is_postgres:
        from holdfast.stores.postgres.bulk.journal_feed import PostgresFeed

        return PostgresFeed(store.databases, tenant)
    if store.is_directory:
        from holdfast.stores.rocks.offline.backup_reader import CopyJournal

        return CopyJournal(store.address, tenant)
    if store.address.lower().partition("://")[0] in OBJECT_SCHEMES:
        from holdfast.stores.objects.journal.feed import ObjectJournal

        return ObjectJournal(store.address, tenant)
    raise _unknown(store)


def find_logs(path: str) -> list[str]:
    """Return the path itself if it is a log, else the logs directly in it."""
    from holdfast.stores.buffered.log.segment_rows import find_logs as find

    return find(path)


def open_log(log: str, is_over: bool) -> Log:
    """Open one log. `is_over`: its server has ended, so that its end is read too."""
    from holdfast.stores.buffered.log.segment_rows import SegmentFiles

    return SegmentFiles(log, is_over=is_over)


def open_messages(directory: str) -> StoredMessages:
    """Open the messages of a backup."""
    return CopiedMessages(directory)


class CopiedMessages:
    """The messages of a backup, in the form in which queues return them."""

    def __init__(self, directory: str) -> None:
        from holdfast.stores.rocks.offline.backup_reader import CopyMessages

        self._messages = CopyMessages(directory)
        self.refs = self._messages.refs
        self.close = self._messages.close

    def infos(self, ref: QueueRef) -> Iterator[Info]:
        """Yield the messages of a queue with their payloads."""
        return (info_of(each, with_payload=True) for each in self._messages.found(ref))


def open_client(store: StoreAddress) -> Holdfast:
    """Return a client for claims, verdicts and enqueues: of a server, or of the databases themselves.

    Raise `InvalidArgument` for a store that several processes cannot share.
    """
    if store.is_http or store.is_postgres:
        return holdfast.open(store.address, **store.client_settings())
    raise InvalidArgument(
        f"{store.address[:200]} cannot be shared by Spark's processes: serve it with `holdfast serve`, and give the "
        "server's URL",
        field="url",
    )


def open_writer(store: StoreAddress) -> MessageWriter | BulkMessageWriter:
    """Open a writer of messages: in bulk for databases, otherwise through a client."""
    if store.is_postgres:
        from holdfast.stores.postgres.bulk.loader import Loader

        return Loader(store.databases, max_payload=Settings().max_payload)
    return ClientMessageWriter(open_client, store)


def _unknown(store: StoreAddress) -> InvalidArgument:
    return InvalidArgument(
        f"{store.address[:200]} has no journal: give http://host:port of a server, postgres://… of its "
        "databases, the directory of a backup, or file:///, s3://, az:// or gs:// of an object store",
        field="url",
    )
