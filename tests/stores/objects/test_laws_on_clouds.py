"""The object store keeps the laws on S3 and on Azure, as emulators give them (tests/stores/objects/emulators.py)."""

import asyncio
from contextlib import suppress

import pytest

from holdfast.stores.objects import ObjectStore, make_bucket
from holdfast.stores.objects.buckets.bucket import PreconditionFailed
from holdfast.testing import EmbeddedSubject, Subject
from holdfast.testing.laws import StoreLaws
from holdfast.testing.laws.lifecycle.dead_letters import DeadLetterLaws
from holdfast.testing.laws.lifecycle.state_documents import StateDocumentLaws
from tests.stores.objects.emulators import Emulator

WEEK_MS = 7 * 86_400_000


def _on(cloud: Emulator) -> Subject:
    """Each opening has its own bucket or prefix."""
    return EmbeddedSubject(lambda dice: ObjectStore(make_bucket(cloud.new_url()), dice, journal_retention_ms=WEEK_MS))


async def _count_up(cloud: Emulator, writers: int, times: int) -> int:
    """Let each writer increment a number `times` times by compare and swap, and return its final value."""
    bucket = make_bucket(cloud.new_url())
    await bucket.create("count", b"0")

    async def count() -> None:
        for _ in range(times):
            while True:
                was = await bucket.read("count")
                with suppress(PreconditionFailed):
                    await bucket.replace("count", b"%d" % (int(was.content) + 1), was.version.etag)
                    break

    await asyncio.gather(*(count() for _ in range(writers)))
    return int((await bucket.read("count")).content)


@pytest.mark.spec("6.1")
@pytest.mark.parametrize("cloud", ["s3", "azure"])
async def test_an_emulated_cloud_lets_one_of_two_conditional_writes_through(
    cloud: str, request: pytest.FixtureRequest
) -> None:
    emulator: Emulator = request.getfixturevalue(cloud)
    assert await _count_up(emulator, writers=4, times=20) == 80
    bucket = make_bucket(emulator.new_url())

    async def create(number: int) -> bool:
        with suppress(PreconditionFailed):
            await bucket.create("only", b"%d" % number)
            return True
        return False

    assert sum(await asyncio.gather(*map(create, range(8)))) == 1


@pytest.mark.slow
class TestS3(DeadLetterLaws, StateDocumentLaws):
    """Those that write several documents; all of them are a proof."""

    @pytest.fixture
    def subject(self, s3: Emulator) -> Subject:
        return _on(s3)


@pytest.mark.slow
class TestAzure(DeadLetterLaws):
    @pytest.fixture
    def subject(self, azure: Emulator) -> Subject:
        return _on(azure)


@pytest.mark.proof
class TestS3Whole(StoreLaws):
    @pytest.fixture
    def subject(self, s3: Emulator) -> Subject:
        return _on(s3)


@pytest.mark.proof
class TestAzureWhole(StoreLaws):
    @pytest.fixture
    def subject(self, azure: Emulator) -> Subject:
        return _on(azure)
