"""Verify a whole store of any kind. Spark's workers import this module by its name."""

from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, InvalidArgument
from holdfast.model.extras import require_extra
from holdfast.server.store_settings import OBJECT_SCHEMES

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.audit import StoreFindings
    from holdfast.stores.findings import Progress, Report


def verify_store(store: str, progress: "Progress | None" = None) -> "Report":
    """Verify a store: the directory of an embedded store, or the URL of an object store."""
    if "://" not in store:
        from holdfast.stores.rocks.verify.store_check import verify

        return verify(store, progress)
    if not is_object_store(store):
        scheme = store.partition("://")[0]
        raise InvalidArgument(
            f"a store at {scheme}:// cannot be verified: give a directory, file:///, s3://, az:// or gs://",
            field="store",
        )
    require_extra("objects", "an object store", "obstore", field="store")
    from holdfast.stores.objects.verify.store import verify as verify_objects

    return verify_objects(store, progress)


def is_object_store(store: str) -> bool:
    """Return True for the URL of an object store."""
    return store.lower().partition("://")[0] in OBJECT_SCHEMES


def check_store(path: str) -> "StoreFindings":
    """Verify a store, and return the findings. A store that cannot be read at all is a finding too."""
    # Imported here because `holdfast verify` also imports this module, and works without Spark.
    from holdfast.pipeline.jobs.audit import StoreFindings

    try:
        report = verify_store(path)
    except HoldfastError as error:
        return StoreFindings(path=path, found=[(str(error), None, None)], number=1)
    found = [(each.what, each.queue, each.id) for each in report.violations]
    return StoreFindings(path=path, found=found, number=report.violation_count)
