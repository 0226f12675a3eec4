"""The pages about the code name modules, classes and functions that exist, and leave nothing out."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PRODUCT = ROOT / "src" / "holdfast"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
GLOSSARY = ROOT / "docs" / "glossary.md"

# The calls that the page follows, each by a word of its title, and the fewest steps of one.
WALKS = ("enqueue", "waits", "expires", "fast path", "object store", "archive", "door processes", "store processes")
FEWEST_STEPS = 5


def find_names(page: Path) -> list[str]:
    """Return everything in backticks that begins with `holdfast.`."""
    return re.findall(r"`(holdfast\.[^`]*)`", page.read_text("utf-8"))


def resolve(name: str) -> object:
    """Return the module or attribute of this name. Raise `ImportError` or `AttributeError` if there is none."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        found: object
        try:
            found = importlib.import_module(".".join(parts[:size]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise  # the module exists, and a package that it needs is missing
            continue
        for part in parts[size:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def read_walks() -> dict[str, list[str]]:
    """Return the steps of each section of the page that has numbered steps, by its title."""
    sections = re.split(r"^## ", ARCHITECTURE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    walks = {}
    for section in sections:
        title, _, text = section.partition("\n")
        steps = re.split(r"^\d+\. ", text, flags=re.MULTILINE)[1:]
        if steps:
            walks[title] = steps
    return walks


def read_terms() -> dict[str, str]:
    """Return the explanation of each term of the glossary."""
    return dict(
        re.findall(r"^- \*\*(.+?)\*\*: (.+?)(?=^- |^$|\Z)", GLOSSARY.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    )


@pytest.mark.parametrize("page", [ARCHITECTURE, GLOSSARY], ids=lambda page: page.stem)
def test_every_name_on_the_page_exists(page: Path) -> None:
    names = sorted(set(find_names(page)))
    missing = []
    for name in names:
        try:
            resolve(name)
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: {error}")

    assert len(names) >= 50
    assert missing == []


@pytest.mark.parametrize(
    "name", ["holdfast.no_such_module", "holdfast.model.no_such_module.Name", "holdfast.model.message.NoSuchName"]
)
def test_a_name_that_does_not_exist_is_found_out(name: str) -> None:
    with pytest.raises((ImportError, AttributeError)):
        resolve(name)


def test_modules_classes_and_methods_are_resolved() -> None:
    assert isinstance(resolve("holdfast.model.message"), ModuleType)
    assert isinstance(resolve("holdfast.model.message.Draft"), type)
    assert callable(resolve("holdfast.service.queues.QueueService.enqueue"))


def test_the_page_names_every_folder_and_module() -> None:
    text = ARCHITECTURE.read_text("utf-8")
    folders = {each.parent.name for each in PRODUCT.glob("*/__init__.py")}
    modules = {each.stem for each in PRODUCT.glob("[!_]*.py")}

    assert len(folders) >= 14
    assert {name for name in folders if f"| `{name}/` |" not in text} == set()
    assert {name for name in modules if f"| `{name}` |" not in text} == set()


def test_the_picture_is_that_of_the_package() -> None:
    picture = ARCHITECTURE.read_text("utf-8").split("```")[1]
    drawn = re.findall(r"\b(\w+)/", picture)

    assert drawn == ["client", "worker", "pipeline", "cli", "doors", "service", "dispatch", "stores", "model"]
    assert [name for name in drawn if not (PRODUCT / name / "__init__.py").is_file()] == []


@pytest.mark.parametrize("word", WALKS)
def test_each_walk_has_steps_that_name_code(word: str) -> None:
    [steps] = [steps for title, steps in read_walks().items() if word in title]

    assert len(steps) >= FEWEST_STEPS
    assert [step for step in steps if "`holdfast." not in step] == []


def test_there_is_a_walk_for_each_call_and_no_other_list_of_steps() -> None:
    assert len(read_walks()) == len(WALKS)


# --- The glossary ----------------------------------------------------------------------------------------------------


def test_the_terms_are_in_alphabetical_order() -> None:
    terms = [term.casefold() for term in read_terms()]

    assert len(terms) == len(set(terms))
    assert terms == sorted(terms)


def test_every_line_of_the_glossary_is_a_term_with_an_explanation() -> None:
    terms = read_terms()

    assert len(terms) == len(re.findall(r"^- ", GLOSSARY.read_text("utf-8"), re.MULTILINE))
    assert [term for term, text in terms.items() if not text.strip().endswith((".", ".)"))] == []


@pytest.mark.parametrize(
    "term",
    [
        *(
            "admission",
            "attempt",
            "buffer target",
            "CAS document",
            "checkpoint",
            "deduplication",
            "door",
            "door process",
        ),
        *("fencing token", "frame", "group", "journal", "key", "lease", "ledger", "link", "node number", "notices"),
        *(
            "publisher",
            "receipt",
            "relay",
            "segment",
            "shard",
            "slot",
            "store process",
            "sweep",
            "turn",
            "unit of work",
        ),
        *("version", "waiter", "window"),
    ],
)
def test_a_term_that_the_code_uses_is_explained(term: str) -> None:
    assert [each for each in read_terms() if each == term or each.startswith(f"{term} (")] != []
