"""Generate `objects_pb2.py` from `objects.proto`: `python -m tests.stores.objects.documents.generate`."""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCES = Path(__file__).parents[4] / "src"
PROTO = "holdfast/stores/objects/documents/objects.proto"


def generate(into: Path) -> list[Path]:
    """Generate the module and its stub below a directory, and return their paths."""
    includes = [f"-I{SOURCES}", f"-I{files('grpc_tools') / '_proto'}"]
    if protoc.main(["protoc", *includes, f"--python_out={into}", f"--pyi_out={into}", PROTO]):
        raise RuntimeError(f"protoc cannot generate {PROTO}")
    return [into / PROTO.replace(".proto", suffix) for suffix in ("_pb2.py", "_pb2.pyi")]


if __name__ == "__main__":
    sys.stdout.write("".join(f"{path}\n" for path in generate(SOURCES)))
