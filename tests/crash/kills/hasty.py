"""The server that is killed, on a bucket that gives up what another server began after seconds.

What a server is at when it is killed nobody can read until it is given up. Over a network that takes as long as a
request may; the emulator of the tests is on this machine.
"""

from holdfast.stores.objects.buckets.cloud import CloudBucket
from tests.machinery.kills import server

MODULE = __name__
PATIENCE_S = 4


def main(*given: str) -> int:
    """Run in a separate process, as all servers that are killed."""
    CloudBucket.step_timeout_ms = PATIENCE_S * 1_000
    return server.main(*given)
