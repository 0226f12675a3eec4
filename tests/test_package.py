"""The names of `import holdfast`: programs, type checkers and pickle find each, and it is imported when it is used."""

import ast
import inspect
import os
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__)

CORRECT = """
import holdfast
from holdfast import *
from holdfast import AsyncQueue, Message, Worker

with holdfast.open("memory://") as opened:
    blocking: holdfast.Holdfast = opened
    queue: Queue = blocking.queue("mail")
awaited: AsyncHoldfast = holdfast.open_async("memory://")
error: type[holdfast.HoldfastError] = holdfast.StaleLease
"""
MISSPELT = "import holdfast\nholdfast.Quueue\n"


def test_the_map_of_the_package_has_a_line_for_every_folder_and_module() -> None:
    lines = [line.split() for line in (holdfast.__doc__ or "").splitlines() if line.startswith("    ")]
    described = {words[0] for words in lines if len(words) > 2}
    folders = {f"{each.parent.name}/" for each in SOURCE.parent.glob("*/__init__.py")}
    modules = {each.stem for each in SOURCE.parent.glob("[!_]*.py")}

    assert folders | modules == {name for name in described if not name.startswith("─")}


def run_fresh(program: str) -> str:
    """Run the program in an interpreter that has imported nothing yet, and return its output."""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_public_name_can_be_used_first() -> None:
    program = (
        "import sys, holdfast\n"
        "ours = [name for name in sys.modules if name.startswith('holdfast.')]\n"
        "for name in holdfast.__all__:\n"
        "    for module in [each for each in sys.modules if each.startswith('holdfast.') and each not in ours]:\n"
        "        del sys.modules[module]\n"
        "    getattr(holdfast, name)\n"
    )
    run_fresh(program)


def test_a_star_import_brings_every_public_name() -> None:
    program = "from holdfast import *; import holdfast; print(sorted(set(holdfast.__all__) - set(globals())))"

    assert run_fresh(program) == "[]\n"


def test_dir_lists_every_public_name_before_its_first_use() -> None:
    program = "import holdfast; print(sorted(set(holdfast.__all__) - set(dir(holdfast))))"

    assert run_fresh(program) == "[]\n"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Quueue'"):
        _ = holdfast.Quueue
    with pytest.raises(ImportError, match="Quueue"):
        exec("from holdfast import Quueue")


def test_type_checkers_see_the_modules_that_the_names_are_imported_from() -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for statement in ast.parse(SOURCE.read_text()).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            for each in statement.body:
                assert isinstance(each, ast.ImportFrom)
                seen[str(each.module)] = tuple(alias.name for alias in each.names)

    assert seen == holdfast._MODULES
    assert set(holdfast._MODULE_OF) <= set(holdfast.__all__)


@pytest.mark.parametrize("function", [holdfast.open, holdfast.open_async])
def test_annotations_can_be_evaluated(function: typing.Any) -> None:
    expected = holdfast.Holdfast if function is holdfast.open else holdfast.AsyncHoldfast

    assert typing.get_type_hints(function)["return"] is expected
    assert inspect.signature(function, eval_str=True).return_annotation is expected


def test_annotations_can_be_evaluated_before_any_other_use() -> None:
    program = "import typing, holdfast; print(typing.get_type_hints(holdfast.open)['return'].__name__)"

    assert run_fresh(program) == "Holdfast\n"


def test_every_error_is_unpickled_by_a_process_that_has_imported_nothing() -> None:
    errors = [getattr(holdfast, name) for name in holdfast.__all__]
    errors = [each for each in errors if isinstance(each, type) and issubclass(each, holdfast.HoldfastError)]
    pickled = pickle.dumps([each("no", queue="mail") for each in errors])
    program = f"import pickle; print([(type(each).__name__, each.queue) for each in pickle.loads({pickled!r})])"

    assert len(errors) > 15
    assert run_fresh(program) == f"{[(each.__name__, 'mail') for each in errors]}\n"


def test_every_public_class_is_unpickled_by_a_process_that_has_imported_nothing() -> None:
    classes = [each for name in holdfast.__all__ if isinstance(each := getattr(holdfast, name), type)]
    program = f"import pickle; print([each.__name__ for each in pickle.loads({pickle.dumps(classes)!r})])"

    assert run_fresh(program) == f"{[each.__name__ for each in classes]}\n"


@pytest.mark.slow
@pytest.mark.parametrize(("program", "code", "said"), [(CORRECT, 0, "Success"), (MISSPELT, 1, 'no attribute "Quueue"')])
def test_mypy_knows_the_names_and_no_others(tmp_path: Path, program: str, code: int, said: str) -> None:
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\nfollow_imports = silent\n")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(SOURCE.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == code, ran.stdout + ran.stderr
    assert said in ran.stdout
