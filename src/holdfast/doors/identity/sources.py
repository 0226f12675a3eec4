"""Load verification keys from a setting, a file or a URL, and reload them when they change."""

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

# A set of 64 large keys with certificate chains is smaller.
MAX_DOCUMENT_BYTES = 256 * 1_024

FILE_CHECK_MS = 1_000

# A withdrawn key is refused at the latest KEYS_TTL_MS after it was removed from the published set. The set is fetched
# again before that, so that no call waits for it while there is traffic.
KEYS_TTL_MS = 5 * 60_000
KEYS_REFRESH_MS = 4 * 60_000
# The minimum time between fetches caused by tokens that name an unknown key, and the delay before a failed fetch is
# retried.
RENEWAL_MS = 60_000
# The same delay while there are no keys yet. It is shorter, because no caller can be accepted until then.
FIRST_KEYS_RETRY_MS = 5_000
# The timeouts of each step of a fetch, and of the whole fetch.
FETCH_STEP_S = 3.0
FETCH_S = 5.0


class KeySource(Protocol):
    """A source of verification keys."""

    keys: KeySet
    # The instant at which `check` is due. An attribute, because it is read on every call.
    check_at: int

    async def start(self) -> None:
        """Load the keys, if they are available now."""

    async def check(self) -> None:
        """Reload the keys if they may have changed."""

    async def renew(self) -> None:
        """Reload the keys because a token names an unknown key, unless that was done a moment ago."""

    async def close(self) -> None:
        """Stop loading keys."""


class FixedKeys:
    """Keys that never change."""

    def __init__(self, keys: KeySet) -> None:
        self.keys = keys
        self.check_at = sys.maxsize

    async def start(self) -> None: ...

    async def check(self) -> None: ...

    async def renew(self) -> None: ...

    async def close(self) -> None: ...


class FileKeys:
    """Keys in a file, which is read again when it changes. If it is then missing or invalid, the old keys remain."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        try:
            self._version = self._stat()
            self.keys = self._read()
        except OSError as error:
            raise unusable(f"the file cannot be read: {error.strerror}") from None
        except UnusableKeys as error:
            raise unusable(str(error)) from None
        if not self.keys.all:
            raise unusable("it contains no key that verifies signatures")
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
            version = self._stat()
        except OSError:
            version = None
        if version == self._version:
            return
        # Noted before the file is read, so that a write in between is noticed by the next check.
        self._version = version
        try:
            self.keys = self._read()
        except OSError as error:
            _log.warning("jwt_keys_unreadable error=%s: the previous keys remain valid", error.strerror)
        except UnusableKeys as error:
            _log.warning("jwt_keys_unusable error=%s: the previous keys remain valid", error)
        else:
            _log.info("jwt_keys_loaded keys=%d", len(self.keys.all))

    def _stat(self) -> tuple[int, int, int] | None:
        found = os.stat(self._path)
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> KeySet:
        with open(self._path, "rb") as file:
            document = file.read(MAX_DOCUMENT_BYTES + 1)
        if len(document) > MAX_DOCUMENT_BYTES:
            raise UnusableKeys(f"it is larger than {MAX_DOCUMENT_BYTES} bytes")
        return parse_keys(document)


class UrlKeys:
    """Keys published by a server. At most one fetch runs at a time. While the server fails, the last keys remain."""

    def __init__(self, url: str, clock: Clock) -> None:
        _check_url(url)
        self._url = url
        self._clock = clock
        self._document = b""
        self._refresh: asyncio.Task[None] | None = None
        self._fetched: Future[bytes] | None = None
        self._has_failed = False
        self._stale_at = 0
        self._renewable_at = 0
        self.keys = KeySet(())
        self.check_at = 0

    async def start(self) -> None:
        await asyncio.shield(self._start_refresh())

    async def check(self) -> None:
        refresh = self._start_refresh()
        # A stale set may contain a withdrawn key, so the call waits for the new set. It does not wait for a server that
        # has just failed, because that server's outage would then stop every call here.
        if self._clock.now_ms() >= self._stale_at and not self._has_failed:
            await asyncio.shield(refresh)

    async def renew(self) -> None:
        if self._refresh is None:
            now = self._clock.now_ms()
            if now < self._renewable_at:
                return
            self._renewable_at = now + RENEWAL_MS
        await asyncio.shield(self._start_refresh())

    async def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresh

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._refresh_once(), name="holdfast-keys")
        return self._refresh

    async def _refresh_once(self) -> None:
        try:
            document = await self._fetch()
            # An unchanged document keeps the same set object, and with it the cache of verified tokens.
            if document != self._document:
                self.keys = parse_jwks(document)
                self._document = document
        except Exception as error:  # no error may fail the calls that wait for keys
            self._has_failed = True
            wait_ms = RENEWAL_MS if self._document else FIRST_KEYS_RETRY_MS
            self.check_at = self._clock.now_ms() + wait_ms
            why = str(error) if isinstance(error, UnusableKeys) else type(error).__name__
            _log.warning("jwt_keys_not_fetched error=%s: the previous keys remain valid", why)
        else:
            self._has_failed = False
            now = self._clock.now_ms()
            self.check_at = now + KEYS_REFRESH_MS
            self._stale_at = now + KEYS_TTL_MS
        finally:
            self._refresh = None

    async def _fetch(self) -> bytes:
        """Fetch the document in a daemon thread, which cannot keep the process alive.

        At most one such thread runs, however slow the server is.
        """
        if self._fetched is not None and not self._fetched.done():
            raise UnusableKeys("the previous fetch has not ended")
        fetched: Future[bytes] = Future()
        self._fetched = fetched
        # A running future cannot be cancelled from outside, so the thread can always set its result.
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
    """Return the document at a URL, fetched by GET over HTTP or HTTPS, through a proxy if one is set.

    Redirects are not followed. Raise `UnusableKeys` for another status than 200 and for a document that is too large.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()):
        opener.add_handler(handler)
    opener.addheaders = [("User-Agent", "holdfast"), ("Accept", "application/jwk-set+json, application/json")]
    with opener.open(url, timeout=FETCH_STEP_S) as answer:
        if answer.status != 200:
            raise UnusableKeys(f"the server returned status {answer.status}")
        parts: list[bytes] = []
        size = 0
        # Read in parts, so that a slow response is abandoned when the caller gives up, and a large one at the limit.
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
        raise unusable("the URL is invalid; give http(s)://host[:port]/path, without a user name or password")


def unusable(why: str) -> InvalidArgument:
    """Return the error for the setting `jwt_keys`. It does not show the value, which may be a key or a private path."""
    return InvalidArgument(f"jwt_keys: {why}", setting="jwt_keys")


def make_key_source(given: str, clock: Clock) -> KeySource:
    """Return the source for a value of `jwt_keys`: a URL, the keys themselves, or the name of a file.

    Raise `InvalidArgument` for an invalid URL, and for keys or a file that contain no usable key.
    """
    if given.lower().startswith(("http://", "https://")):
        return UrlKeys(given, clock)
    if "-----BEGIN" in given or given.lstrip().startswith("{"):
        try:
            keys = parse_keys(given.encode())
        except UnusableKeys as error:
            raise unusable(str(error)) from None
        if not keys.all:
            raise unusable("it contains no key that verifies signatures")
        return FixedKeys(keys)
    if not given.strip() or "\0" in given:
        raise unusable("the setting is empty; give a PEM or JWKS file, or a JWKS URL")
    return FileKeys(given, clock)
