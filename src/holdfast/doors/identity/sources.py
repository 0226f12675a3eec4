"""Where keys come from, and when they are looked for again."""

import asyncio
import contextlib
import logging
import os
import sys
import threading
import urllib.request
from concurrent.futures import Future
from typing import Protocol
from urllib.parse import urlsplit

from holdfast.clock import Clock
from holdfast.doors.identity.keys import KeySet, UnusableKeys, parse_jwks, parse_keys
from holdfast.model.errors import InvalidArgument

_log = logging.getLogger("holdfast")

# A set of 64 large keys with certificate chains takes less.
MAX_DOCUMENT_BYTES = 256 * 1_024

FILE_CHECK_MS = 1_000

# A withdrawn key is refused at most KEYS_TTL_MS after the set lacked it. The new set is asked for before that, so
# that no call waits for it while there is traffic.
KEYS_TTL_MS = 5 * 60_000
KEYS_REFRESH_MS = 4 * 60_000
# How often a token that names an unknown key may cause a fetch, and how soon a failed fetch is tried again.
RENEWAL_MS = 60_000
# Until there were keys at all nobody can be let in: try sooner.
FIRST_KEYS_RETRY_MS = 5_000
# For each step of the exchange, and for all of it.
FETCH_STEP_S = 3.0
FETCH_S = 5.0


class KeySource(Protocol):
    keys: KeySet
    # When `check` wants to be called again; read on every call, hence an attribute.
    check_at: int

    async def start(self) -> None:
        """Have keys, if they can be had now."""

    async def check(self) -> None:
        """Look whether the keys are still the ones in force."""

    async def renew(self) -> None:
        """A token named a key that is not there: look now, unless that was done a moment ago."""

    async def close(self) -> None: ...


class FixedKeys:
    """Keys that stay as they were given."""

    def __init__(self, keys: KeySet) -> None:
        self.keys = keys
        self.check_at = sys.maxsize

    async def start(self) -> None: ...

    async def check(self) -> None: ...

    async def renew(self) -> None: ...

    async def close(self) -> None: ...


class FileKeys:
    """Keys in a file, which is read again when it changed. A file that is gone or garbage leaves the old ones."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        try:
            self._seen = self._look()
            self.keys = self._read()
        except OSError as error:
            raise unusable(f"the file cannot be read: {error.strerror}") from None
        except UnusableKeys as error:
            raise unusable(str(error)) from None
        if not self.keys.all:
            raise unusable("there is no key in it that verifies signatures")
        self.check_at = clock.now_ms() + FILE_CHECK_MS

    async def start(self) -> None: ...

    async def check(self) -> None:
        self.check_at = self._clock.now_ms() + FILE_CHECK_MS
        self._read_if_changed()

    async def renew(self) -> None:
        self._read_if_changed()

    async def close(self) -> None: ...

    def _read_if_changed(self) -> None:
        try:
            seen = self._look()
        except OSError:
            seen = None
        if seen == self._seen:
            return
        # Noted before it is read: a write in between is seen the next time.
        self._seen = seen
        try:
            self.keys = self._read()
        except OSError as error:
            _log.warning("jwt_keys: the file cannot be read, the keys stay as they were: %s", error.strerror)
        except UnusableKeys as error:
            _log.warning("jwt_keys: the file is not usable, the keys stay as they were: %s", error)
        else:
            _log.info("jwt_keys: the file changed: %d keys in force", len(self.keys.all))

    def _look(self) -> tuple[int, int, int] | None:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> KeySet:
        with open(self._path, "rb") as file:
            document = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(document) > MAX_DOCUMENT_BYTES:
            raise UnusableKeys(f"it is larger than {MAX_DOCUMENT_BYTES} bytes")
        return parse_keys(document)


class UrlKeys:
    """Keys that a server publishes. One fetch at a time; while the server fails, the last keys stay in force."""

    def __init__(self, url: str, clock: Clock) -> None:
        _check_url(url)
        self._url = url
        self._clock = clock
        self._document = b""
        self._flight: asyncio.Task[None] | None = None
        self._fetched: Future[bytes] | None = None
        self._has_failed = False
        self._stale_at = 0
        self._renewable_at = 0
        self.keys = KeySet(())
        self.check_at = 0

    async def start(self) -> None:
        await asyncio.shield(self._take_off())

    async def check(self) -> None:
        flight = self._take_off()
        # Past its time a set may hold a withdrawn key: wait for the new one. A server that has just failed is not
        # waited for: its outage would be everyone's.
        if self._clock.now_ms() >= self._stale_at and not self._has_failed:
            await asyncio.shield(flight)

    async def renew(self) -> None:
        if self._flight is None:
            now = self._clock.now_ms()
            if now < self._renewable_at:
                return
            self._renewable_at = now + RENEWAL_MS
        await asyncio.shield(self._take_off())

    async def close(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._flight

    def _take_off(self) -> asyncio.Task[None]:
        if self._flight is None:
            self._flight = asyncio.create_task(self._refresh_once(), name="holdfast-keys")
        return self._flight

    async def _refresh_once(self) -> None:
        try:
            document = await self._fetch()
            # The same document leaves the same set, and with it what is known of tokens.
            if document != self._document:
                self.keys = parse_jwks(document)
                self._document = document
        except Exception as error:  # whatever it is, it must not fail the calls that wait for keys
            self._has_failed = True
            wait_ms = RENEWAL_MS if self._document else FIRST_KEYS_RETRY_MS
            self.check_at = self._clock.now_ms() + wait_ms
            why = str(error) if isinstance(error, UnusableKeys) else type(error).__name__
            _log.warning("jwt_keys: no keys from the URL, the last ones stay in force: %s", why)
        else:
            self._has_failed = False
            now = self._clock.now_ms()
            self.check_at = now + KEYS_REFRESH_MS
            self._stale_at = now + KEYS_TTL_MS
        finally:
            self._flight = None

    async def _fetch(self) -> bytes:
        """In a thread of its own, which cannot keep the process alive, and is at most one however slow the server."""
        if self._fetched is not None and not self._fetched.done():
            raise UnusableKeys("the fetch before this one has not ended")
        fetched: Future[bytes] = Future()
        self._fetched = fetched
        # Running, it cannot be cancelled from outside, and the thread may always settle it.
        fetched.set_running_or_notify_cancel()
        is_given_up = threading.Event()

        def run() -> None:
            try:
                fetched.set_result(fetch_document(self._url, is_given_up))
            except Exception as error:
                fetched.set_exception(error)

        threading.Thread(target=run, name="holdfast-keys", daemon=True).start()
        try:
            async with asyncio.timeout(FETCH_S):
                return await asyncio.wrap_future(fetched)
        finally:
            is_given_up.set()


def fetch_document(url: str, is_given_up: threading.Event) -> bytes:
    """GET, without redirects: an opener that knows HTTP and a proxy, and nothing else."""
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "holdfast"), ("Accept", "application/jwk-set+json, application/json")]
    with opener.open(url, timeout=FETCH_STEP_S) as answer:
        if answer.status != 200:
            raise UnusableKeys(f"the server answered with status {answer.status}")
        parts: list[bytes] = []
        size = 0
        # Part by part: a server that trickles is left when nobody waits any more, and a large one at the limit.
        while not is_given_up.is_set() and (part := answer.read1(65_536)):
            parts.append(part)
            size += len(part)
            if size > MAX_DOCUMENT_BYTES:
                raise UnusableKeys(f"the document is larger than {MAX_DOCUMENT_BYTES} bytes")
        return b"".join(parts)


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_usable = bool(parts.hostname) and "@" not in parts.netloc and (parts.port is None or parts.port > 0)
    except ValueError:
        is_usable = False
    if not is_usable or not url.isascii() or not url.isprintable() or " " in url:
        raise unusable("the URL is not usable: give http(s)://host[:port]/path, without a user name or password")


def unusable(why: str) -> InvalidArgument:
    """What was given is not shown: it may be a key, or a path that tells too much."""
    return InvalidArgument(f"jwt_keys: {why}", setting="jwt_keys")


def key_source(given: str, clock: Clock) -> KeySource:
    """A URL, the keys themselves, or else the name of a file."""
    if given.lower().startswith(("http://", "https://")):
        return UrlKeys(given, clock)
    if "-----BEGIN" in given or given.lstrip().startswith("{"):
        try:
            keys = parse_keys(given.encode())
        except UnusableKeys as error:
            raise unusable(str(error)) from None
        if not keys.all:
            raise unusable("there is no key in it that verifies signatures")
        return FixedKeys(keys)
    if not given.strip() or "\0" in given:
        raise unusable("it is empty: give a PEM or JWKS file, or a JWKS URL")
    return FileKeys(given, clock)
