"""Two functions of one name: another process would import the second for the first."""


def work() -> None: ...


first = work


def work() -> None: ...  # type: ignore[no-redef]  # on purpose
