"""Start emulated clouds for the tests, on free ports of the loopback, with all data in memory.

A conditional write is a useful test only if the emulator compares and writes in one step:

- Azurite has one thread, and awaits nothing between finding a blob, comparing it and replacing it.
- moto compares in one call and writes in another, on one thread per request, so two writers can both find what they
  expect. s3_server.py therefore admits one request at a time.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from uuid import uuid4

from tests.machinery.kills.serving import free_port
from tests.services import AZURITE, find_program

ROOT = Path(__file__).parents[3]
_START_S = 60.0
# Of a request: a thousand at once wait for one another here.
_TIMEOUT = "300s"

# Known to everybody: those that every emulator of Azure answers to.
_ACCOUNT = "devstoreaccount1"
_ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Emulator:
    """A cloud in a separate process. `variables` are what a program must be given to find it."""

    scheme: str
    variables: Mapping[str, str]

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-cloud-"))
        self._process: subprocess.Popen[bytes] | None = None

    def new_url(self) -> str:
        """Return the URL of a prefix in a new bucket: a listing costs these emulators as much as the whole bucket
        holds."""
        bucket = uuid4().hex
        self._make_bucket(bucket)
        return f"{self.scheme}://{bucket}/some/place"

    def start(self) -> None:
        log = self._directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self._make_bucket("first")
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the emulator did not start: {error}; {log.read_text()[-2000:]}") from None
                time.sleep(0.05)

    def close(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _make_bucket(self, name: str) -> None:
        raise NotImplementedError


class S3Emulator(Emulator):
    scheme = "s3"

    def __init__(self) -> None:
        super().__init__()
        self.variables = {
            "AWS_ENDPOINT": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
            "AWS_TIMEOUT": _TIMEOUT,
        }

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.stores.objects.s3_server", str(self.port)]

    def _make_bucket(self, name: str) -> None:
        _put(f"{self.address}/{name}", {})


class AzureEmulator(Emulator):
    scheme = "az"

    def __init__(self) -> None:
        super().__init__()
        self.variables = {
            "AZURE_STORAGE_ENDPOINT": f"{self.address}/{_ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _ACCOUNT_KEY,
            "AZURE_TIMEOUT": _TIMEOUT,
        }

    def _command(self) -> list[str]:
        if not AZURITE.is_dir():
            raise RuntimeError("the tests need Azurite, which is not installed: run `make setup`")
        program = json.loads((AZURITE / "package.json").read_text())["bin"]["azurite-blob"]
        return [
            *(find_program("node"), str(AZURITE / program), "--blobHost", "127.0.0.1", "--blobPort", str(self.port)),
            *("--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"),
        ]

    def _make_bucket(self, name: str) -> None:
        """Signed by the account's key: obstore makes no containers."""
        given = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
        headers = "".join(f"{header}:{value}\n" for header, value in given.items())
        signed = f"PUT{chr(10) * 12}{headers}/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(_ACCOUNT_KEY), signed.encode(), hashlib.sha256).digest()
        given["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}"
        _put(f"{self.address}/{_ACCOUNT}/{name}?restype=container", given)


def _put(url: str, headers: Mapping[str, str]) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=dict(headers)), timeout=5) as answer:
        answer.read()


@contextmanager
def emulated(kind: type[Emulator]) -> Iterator[Emulator]:
    """One that is up, with its variables in the environment of this process and its children."""
    emulator = kind()
    before = {name: os.environ.get(name) for name in emulator.variables}
    try:
        emulator.start()
        os.environ.update(emulator.variables)
        yield emulator
    finally:
        emulator.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
