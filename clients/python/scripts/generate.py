"""Writes the generated code in `src/shoal/v1` anew from the schema of the server.

    pip install grpcio-tools==1.74.0
    python scripts/generate.py

With `--check` nothing is written: the exit code is 1 where the code is not what the schema gives. The version of
grpcio-tools is pinned, since it decides which versions of grpcio and protobuf a user must have at least.
"""

import argparse
import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

TOOLS = "1.74.0"
PROTO = "shoal/v1/object_store.proto"
HERE = Path(__file__).resolve().parent.parent
SCHEMA = HERE.parent.parent / "crates" / "api" / "proto"
TARGET = HERE / "src"
FILES = ["object_store_pb2.py", "object_store_pb2.pyi", "object_store_pb2_grpc.py"]


def generate(into: Path) -> None:
    """Runs protoc; its output is below `into`."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SCHEMA)]
    command += [f"--python_out={into}", f"--pyi_out={into}", f"--grpc_python_out={into}", PROTO]
    subprocess.run(command, check=True)


def stale(fresh: Path) -> list[str]:
    """The files that are not as below `fresh`."""
    folder = Path(PROTO).parent
    return [name for name in FILES if not same(fresh / folder / name, TARGET / folder / name)]


def same(left: Path, right: Path) -> bool:
    """Whether both files exist with the same bytes."""
    return right.exists() and left.read_bytes() == right.read_bytes()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    try:
        version = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        version = "none"
    if version != TOOLS:
        print(
            f"grpcio-tools {TOOLS} is needed, not {version}: pip install grpcio-tools=={TOOLS}",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        names = stale(Path(folder))
        if check:
            for name in names:
                print(f"{name} is not what the schema gives: run scripts/generate.py", file=sys.stderr)
            return 1 if names else 0
        for name in names:
            fresh = Path(folder) / Path(PROTO).parent / name
            (TARGET / Path(PROTO).parent / name).write_bytes(fresh.read_bytes())
            print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
