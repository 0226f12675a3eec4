"""What the pipeline is given to read stores in bulk: the one place that knows which store a URL means."""

from holdfast.pipeline.sources.feed import Feed, HttpFeed
from holdfast.pipeline.sources.options import Place


def open_feed(place: Place, tenant: str | None) -> Feed:
    return HttpFeed(place, tenant)
