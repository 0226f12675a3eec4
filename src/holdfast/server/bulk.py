"""What the pipeline is given to reach stores in bulk: the one place that knows which store a URL means."""

import holdfast
from holdfast.client.blocking import Holdfast
from holdfast.model.errors import InvalidArgument
from holdfast.pipeline.sources.feed import Feed, HttpFeed
from holdfast.pipeline.sources.options import Place
from holdfast.pipeline.sources.sink import ClientLanding, Landing


def open_feed(place: Place, tenant: str | None) -> Feed:
    if place.is_http:
        return HttpFeed(place, tenant)
    raise _unknown(place)


def open_client(place: Place) -> Holdfast:
    """For claims, verdicts and enqueues: a server, or the databases themselves."""
    if place.is_http or place.is_postgres:
        return holdfast.open(place.address, **place.client_settings())
    raise InvalidArgument(
        f"{place.address[:200]} cannot be shared by Spark's processes: serve it with `holdfast serve`, and give the "
        "server's URL",
        field="url",
    )


def open_landing(place: Place) -> Landing:
    return ClientLanding(open_client, place)


def _unknown(place: Place) -> InvalidArgument:
    return InvalidArgument(
        f"{place.address[:200]} is no place of a journal: give http://host:port of a server, postgres://… of its "
        "databases, or the directory of a backup",
        field="url",
    )
