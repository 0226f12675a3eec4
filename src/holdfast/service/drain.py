"""The flag of a server that is closing."""


class Drain:
    """A flag that is set when a server begins to close. Doors then refuse new calls and report that they are not ready.

    It cannot be reset.
    """

    def __init__(self) -> None:
        self.is_draining = False

    def begin(self) -> None:
        """Set the flag."""
        self.is_draining = True
