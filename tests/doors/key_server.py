"""A server of keys: what an identity provider does at the URL of its key set."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.doors.credentials import es_jwk, jwks


class KeyServer:
    """A server of public keys that counts its requests."""

    def __init__(self) -> None:
        self.answer: Callable[[BaseHTTPRequestHandler], None] = self.document(jwks(es_jwk(0, "a")))
        self.asked: list[str] = []
        keys = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keys.asked.append(self.path)
                keys.answer(self)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/jwks.json"

    @staticmethod
    def document(content: bytes, status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(content)

        return answer

    def publish(self, *entries: Any) -> None:
        self.answer = self.document(jwks(*entries))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
