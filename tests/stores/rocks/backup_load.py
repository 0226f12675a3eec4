"""A program that fills and empties a store until it is killed, and prints the id of every acknowledged message."""

import sys

import holdfast

# Large enough that the store flushes and compacts while it is being copied.
PAYLOAD = bytes(range(256)) * 160


def run(directory: str) -> None:
    with holdfast.open(directory, durability="os") as hf:
        queue = hf.queue("load", tenant="acme")
        while True:
            for id in queue.enqueue([PAYLOAD, b"small", b"small too"], group="g"):
                sys.stdout.write(f"{id}\n")
            sys.stdout.flush()
            for message in queue.claim(limit=2):
                message.ack()


if __name__ == "__main__":
    run(sys.argv[1])
