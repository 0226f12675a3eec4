"""The habits of STYLE.md that a program can check: sizes, names, docstrings and sleeps."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ROOT / "src" / "holdfast"

MAX_LINES = 400
MAX_FILES = 16
MAX_PARAMETERS = 8

FIRST_WORDS = frozenset({"What", "Of", "Whoever", "Whether", "So", "As"})
# Words for things that this project has plainer ones for, as parts of names.
METAPHORS = frozenset(
    {
        *("shelf", "shelves", "sheet", "paper", "bell", "lane", "board", "ground", "hall", "book", "place", "places"),
        *("upkeep", "told", "heard", "tell", "hear", "bring", "intake", "standing"),
    }
)
# Columns of tables that other programs read, the method of files, and a migration that needs no second directory.
PUBLIC_COLUMNS = frozenset(
    {
        "cli/pipeline/legacy.py: migrate_in_place",
        "cli/pipeline/migrate.py: migrate_in_place",
        "stores/buffered/log/segment_rows.py: lane",
        "stores/buffered/log/segment_rows.py: place",
    }
)
UNCLEAR_MODULES = frozenset({"utils", "helpers", "manager", "base", "common", "misc"})

# Waits that are not of a clock, by module: each with its reason.
SLEEPS = {
    "cli/demo/worker_process.py": "the demo's handler, whose sleep stands for work",
    "clock.py": "the clock itself",
    "runtime.py": "the clock's alarms in threads",
    "testing/proxy.py": "the fault proxy delays bytes of real sockets in real time",
}

# Methods that the classes of libraries declare.
CALLBACKS = frozenset(
    {
        *("connection_made", "data_received", "eof_received", "connection_lost", "pause_writing", "resume_writing"),
        *("parse_args", "make_context", "list_commands", "get_command", "format_help"),
        *("schema", "reader", "writer", "streamReader", "streamWriter", "getDefaultReadLimit", "reportLatestOffset"),
    }
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Source(NamedTuple):
    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return str(self.path.relative_to(PRODUCT))


@cache
def sources() -> tuple[Source, ...]:
    paths = sorted(PRODUCT.rglob("*.py"))
    assert len(paths) > 400
    return tuple(Source(path, text := path.read_text("utf-8"), ast.parse(text)) for path in paths)


def nodes(*kinds: type) -> Iterator[tuple[Source, ast.AST]]:
    for source in sources():
        for node in ast.walk(source.tree):
            if isinstance(node, kinds):
                yield source, node


def test_no_file_is_longer_than_a_reader_takes_in() -> None:
    lengths = {source.name: source.text.count("\n") for source in sources()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_folder_is_longer_than_a_list_that_needs_no_scrolling() -> None:
    files = Counter(str(source.path.parent.relative_to(PRODUCT)) for source in sources())
    assert {name: count for name, count in files.items() if count > MAX_FILES} == {}


def test_every_folder_says_what_happens_in_it_what_it_must_not_do_and_where_to_start_reading() -> None:
    incomplete = []
    for source in sources():
        if source.path.name != "__init__.py" or source.path.parent == PRODUCT:
            continue
        docstring = ast.get_docstring(source.tree) or ""
        has_limit = re.search(r"\b(must not|may not|not|no|nothing|never|only|apart from)\b", docstring, re.IGNORECASE)
        _, _, start = docstring.partition("\nStart ")
        named = re.findall(r"`([\w/]+\.(?:py|capnp)|[\w/]+/)`", start)
        missing = [name for name in named if not ((source.path.parent / name).exists() or (PRODUCT / name).exists())]
        if docstring.count("\n") < 2 or has_limit is None or not named or missing:
            incomplete.append(f"{source.name}: {missing or docstring}")
    assert incomplete == []


# Modules that define a stored format. A new format is added here, with a paragraph and a fixture.
STORED = frozenset(
    {
        *("pipeline/lake/delta.py", "pipeline/lake/iceberg.py", "pipeline/lake/parquet.py", "pipeline/lake/tables.py"),
        *("pipeline/sources/claims.py", "pipeline/sources/journal.py", "pipeline/sources/segments.py"),
        *("service/limits/redis_rates.py", "stores/buffered/log/records.py", "stores/buffered/redis_keys.py"),
        *("stores/formats/logged_enqueue.py", "stores/formats/message_record.py"),
        *("stores/objects/buckets/disk.py", "stores/objects/documents/cas_documents.py"),
        "stores/objects/documents/bodies.py",
        *("stores/objects/documents/document_format.py", "stores/objects/documents/json_documents.py"),
        *("stores/objects/documents/layout.py", "stores/objects/journal/journal.py"),
        "stores/postgres/schema/migrations.py",
        *("stores/rocks/directory/counters.py", "stores/rocks/directory/queue_catalog.py"),
        *("stores/rocks/directory/queue_indexes.py", "stores/rocks/directory/schedules.py"),
        *("stores/rocks/directory/store_facts.py", "stores/rocks/engine/layers.py"),
        *("stores/rocks/engine/log_position.py", "stores/rocks/engine/shard_links.py"),
        *("stores/rocks/journal/event_blocks.py", "stores/rocks/journal/journal.py", "stores/rocks/keys.py"),
        *("stores/rocks/legacy/message_import.py", "stores/rocks/legacy/online/move_records.py"),
        *("stores/rocks/log/frames.py", "stores/rocks/log/segments.py"),
        *("stores/rocks/payloads/pieces.py", "stores/rocks/payloads/staging.py"),
        *("stores/rocks/queues/idempotency_keys.py", "stores/rocks/queues/ledgers.py"),
        *("stores/rocks/queues/plain_messages.py", "stores/rocks/recovery/marker.py", "stores/rocks/transfers.py"),
    }
)


def test_every_stored_format_says_how_to_change_it() -> None:
    assert {source.name for source in sources() if "How to change this format:" in source.text} == STORED


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [source.name for source in sources() if source.path.stem in UNCLEAR_MODULES] == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    begun = []
    for folder in (PRODUCT, *(ROOT / each for each in ("tests", "bench", "examples"))):
        for path in sorted(folder.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                    docstring = ast.get_docstring(node) or "None"
                    if docstring.split()[0] in FIRST_WORDS:
                        begun.append(f"{path}:{getattr(node, 'lineno', 1)}: {docstring.splitlines()[0]}")
    assert begun == []


def test_every_public_function_class_and_method_has_a_docstring() -> None:
    documented = {
        method.name
        for _, cls in nodes(ast.ClassDef)
        if isinstance(cls, ast.ClassDef)
        for method in cls.body
        if isinstance(method, FunctionNode) and ast.get_docstring(method)
    }
    bare = []
    for source in sources():
        # The name of a law, and of a rule of the state machine, is the sentence that it proves or does.
        if source.name.startswith(("testing/laws/", "testing/machine/")):
            continue
        for node in public(source.tree):
            if not ast.get_docstring(node):
                bare.append(f"{source.name}: {node.name}")
            # The interface that declares a method documents it for the classes that implement it.
            methods = public(node) if isinstance(node, ast.ClassDef) else ()
            bare += [
                f"{source.name}: {node.name}.{each.name}"
                for each in methods
                if each.name not in documented and not is_callback(each.name)
            ]
    assert bare == []


def public(body: ast.Module | ast.ClassDef) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the public classes and functions in a body, without overloads."""
    for node in body.body:
        if (
            isinstance(node, ast.ClassDef | FunctionNode)
            and not node.name.startswith("_")
            and not any(ast.unparse(each) == "overload" for each in node.decorator_list)
        ):
            yield node


def is_callback(name: str) -> bool:
    """Return whether a library that documents this method calls it: asyncio, typer, httptools, pycapnp or PySpark."""
    return name in CALLBACKS or name.startswith("on_") or name.endswith("_context")


def test_no_name_is_a_metaphor() -> None:
    named = {
        f"{source.name}: {name}"
        for source, node in nodes(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.arg, ast.Name)
        if (name := getattr(node, "name", None) or getattr(node, "arg", None) or getattr(node, "id", ""))
        and METAPHORS & set(words(name))
    }
    assert named - PUBLIC_COLUMNS == set()


def words(name: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())


def test_one_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for source, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
        if not node.name.startswith("_"):
            places.setdefault(node.name, []).append(source.name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_a_function_takes_few_enough_parameters_to_remember() -> None:
    many = []
    for source, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, FunctionNode)
        given = node.args
        count = sum(each.arg not in ("self", "cls") for each in [*given.posonlyargs, *given.args])
        if count > MAX_PARAMETERS and not is_command(source, node):
            many.append(f"{source.name}:{node.lineno}: {node.name} has {count}")
    assert many == []


# Parameters of a command are the options that a user may type; typer alone calls it, and names each of them.
def is_command(source: Source, function: FunctionNode) -> bool:
    """Return whether all parameters are annotated for typer, except for a CommandSession."""
    annotations = [ast.unparse(each.annotation) for each in function.args.args if each.annotation is not None]
    return source.name.startswith("cli/") and all(
        each == "CommandSession" or each.startswith("Annotated[") or each in option_types() for each in annotations
    )


@cache
def option_types() -> frozenset[str]:
    """Return the names of the annotated types under `cli/`, as in `Yes = Annotated[bool, typer.Option(...)]`."""
    return frozenset(
        ast.unparse(node.targets[0])
        for source, node in nodes(ast.Assign)
        if isinstance(node, ast.Assign)
        and source.name.startswith("cli/")
        and ast.unparse(node.value).startswith("Annotated[")
    )


@pytest.mark.spec("2.14")
def test_the_product_waits_on_its_clock() -> None:
    slept = []
    for source, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        called = ast.unparse(node.func)
        is_yield = bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if called in ("asyncio.sleep", "time.sleep") and not is_yield and source.name not in SLEEPS:
            slept.append(f"{source.name}:{node.lineno}: {ast.unparse(node)}")
    assert slept == []


def test_a_line_of_the_log_begins_with_the_name_of_its_event() -> None:
    levels = ("debug", "info", "warning", "error", "critical", "exception", "log")
    prose = []
    for source, node in nodes(ast.Call):
        assert isinstance(node, ast.Call)
        if ast.unparse(node.func) in [f"{logger}.{level}" for logger in ("log", "_log") for level in levels]:
            [text, *_] = [each.value for each in node.args if isinstance(each, ast.Constant)] or [""]
            if not re.match(r"[a-z]+(_[a-z%]+)*( \w+=|: |$)", str(text)):
                prose.append(f"{source.name}:{node.lineno}: {text}")
    assert prose == []


def test_what_the_type_checker_is_told_to_ignore_has_a_reason() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("src", "tests", "bench", "examples")
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(r"# type: ignore(\[[\w, -]+\])?\s*$", line)
    ]
    assert bare == []


@pytest.mark.parametrize("word", sorted(METAPHORS))
def test_the_names_that_are_refused_are_found(word: str) -> None:
    assert METAPHORS & set(words(f"my_{word}_index"))
    assert METAPHORS & set(words(f"My{word.title()}Index"))
