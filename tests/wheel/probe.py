"""Runs inside an environment of the wheel: calls commands or imports modules, and prints what came of each as JSON.

It holds the standard library alone, and `holdfast` itself. A command runs in a fork of this process, which has imported
the command line once: a new interpreter for each would take ten times as long.
"""

import contextlib
import importlib
import json
import os
import re
import shlex
import sys
import tempfile
import traceback
from typing import Any

_EXPORT = re.compile(r"^export (\w+)=(.*)$", re.MULTILINE)


def call_all(calls: list[list[str]]) -> list[tuple[int, str, str]]:
    """Call each command line in turn; return exit code, output and errors of each.

    Variables that a command exports, as `dequeue` does for a shell's `eval`, are set for those that follow.
    """
    import typer

    import holdfast.server.embedded  # noqa: F401  (once, not in each fork)

    with contextlib.suppress(ImportError):
        import pyspark.sql  # noqa: F401
    from holdfast.cli.main import app, main

    built = typer.main.get_command(app)
    typer.main.get_command = lambda app: built  # likewise
    with contextlib.suppress(Exception):
        app(["db", "status", "--store", "wrong"], standalone_mode=False)  # loads what typer loads for any command
    answers: list[tuple[int, str, str]] = []
    for arguments in calls:
        answer = _call(main, arguments)
        for name, value in _EXPORT.findall(answer[1]):
            os.environ[name] = "".join(shlex.split(value))
        answers.append(answer)
    return answers


def _call(main: Any, arguments: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.argv = ["holdfast", *arguments]
                main()
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return code, out.read().decode(), err.read().decode()


def import_all(names: list[str]) -> dict[str, tuple[str, str | None]]:
    """Import each module; return the error of each that fails, and the error's explanation."""
    from holdfast.model.extras import explain_import

    failed = {}
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            explained = explain_import(error)
            failed[name] = (f"{type(error).__name__}: {error}", None if explained is None else str(explained))
    return failed


def find_all(names: list[str]) -> list[str]:
    """Return the modules among `names` that are installed."""
    from holdfast.model.extras import is_installed

    return [name for name in names if is_installed(name)]


def run_code(programs: list[str]) -> list[str]:
    """Run each piece of code; return the error of each, or an empty text."""
    answers = []
    for program in programs:
        try:
            exec(program, {})
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}")
        else:
            answers.append("")
    return answers


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    work = {"call": call_all, "import": import_all, "find": find_all, "run": run_code}[sys.argv[1]]
    sys.stdout.write(json.dumps(work(asked)))
