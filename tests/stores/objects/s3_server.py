"""S3 by moto, one request at a time: `python -m tests.stores.objects.s3_server PORT`.

moto finds and compares an object, then writes: between the two another thread's write can fall. Under the lock none
does, so of two conditional writes of one key one succeeds, as S3 promises.
"""

import logging
import sys
from collections.abc import Iterable
from threading import Lock
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


class _Handler(MotoRequestHandler):
    # Else every request is a separate connection.
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True


def main(port: int) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, turn = create_backend_app("s3"), Lock()

    def one_at_a_time(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        with turn:
            return list(app(environ, start))

    make_server("127.0.0.1", port, one_at_a_time, threaded=True, request_handler=_Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
