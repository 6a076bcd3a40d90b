"""The generated code is what the schema of the server gives."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from shoal.v1 import object_store_pb2 as pb

HERE = Path(__file__).resolve().parent.parent
SCHEMA = HERE.parent.parent / "crates" / "api" / "proto"

needs_schema = pytest.mark.skipif(not SCHEMA.is_dir(), reason="outside of the repository")


@needs_schema
def test_the_code_is_what_the_pinned_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "scripts" / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


@needs_schema
def test_the_messages_are_those_of_the_schema() -> None:
    """With any version of protoc."""
    pytest.importorskip("grpc_tools")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(SCHEMA), f"--descriptor_set_out={out}"]
        subprocess.run([*command, "shoal/v1/object_store.proto"], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    assert len(files) == 1
    ours = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(ours)
    for file in (files[0], ours):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert files[0] == ours
