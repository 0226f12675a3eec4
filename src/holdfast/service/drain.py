"""The state of a server that is about to close."""


class Drain:
    """Says whether a server is closing. Doors then refuse new calls and report that they are not ready."""

    def __init__(self) -> None:
        self.is_draining = False

    def begin(self) -> None:
        self.is_draining = True
