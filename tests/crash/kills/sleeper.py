"""A process that does nothing."""

import os
import threading


def main(seconds: str) -> None:
    os.write(1, b"asleep\n")
    threading.Event().wait(float(seconds))
