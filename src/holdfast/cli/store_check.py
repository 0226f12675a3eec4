"""A store directory checked by one of Spark's workers: importable there by its name."""

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.jobs.audit import StoreFindings


def check_store(path: str) -> StoreFindings:
    """As `holdfast verify`; a store that cannot be read at all is a finding too."""
    from holdfast.stores.rocks.verify import verify

    try:
        report = verify(path)
    except HoldfastError as error:
        return StoreFindings(path=path, found=[(str(error), None, None)], number=1)
    found = [(each.what, each.queue, each.id) for each in report.violations]
    return StoreFindings(path=path, found=found, number=report.violation_count)
