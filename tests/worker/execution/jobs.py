"""Handlers that run in separate processes, and a worker for `module:attribute`."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec

import holdfast

worker = holdfast.Worker("memory://", owner="by-name")


class Task(msgspec.Struct):
    do: str
    path: str = ""


@worker.handler("named")
async def named(message: holdfast.Message) -> None:
    worker.stop()


@worker.on_start
async def feed(worker: holdfast.Worker) -> None:
    await worker.client.queue("named").enqueue("go")


def work(task: Task, message: holdfast.Message) -> None:
    match task.do:
        case "say":
            message.progress(50, "half")
            message.save_state({"pid": os.getpid()})
            message.extend(60)
            note(task, f"{os.getpid()} {message.attempt} {message.version}")
        case "raise":
            raise ValueError("from the other side")
        case "reject":
            raise holdfast.Reject("never")
        case "exit":
            sys.exit(3)
        case "leave":
            os._exit(7)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            note(task, str(os.getpid()))
            threading.Event().wait()
        case "sleep":
            note(task, str(os.getpid()))
            time.sleep(3_600)
        case "lose":
            message.release()
            message.ack()
        case _:
            raise AssertionError(task.do)


def note(task: Task, text: str) -> None:
    with Path(task.path).open("a") as file:
        file.write(f"{text}\n")


class Large(msgspec.Struct):
    path: str
    filling: str


def take_whole(large: Large, message: holdfast.Message) -> None:
    message.progress(10)  # what the worker answers must not take the payload away again
    Path(large.path).write_text(f"{os.getpid()} {len(large.filling)} {len(message.payload)} {message.size}")


def take_parts(message: holdfast.Message) -> None:
    out = message.headers["out"]
    message.write_to(out)
    Path(f"{out}.parts").write_text(" ".join(str(len(part)) for part in message.chunks()))
