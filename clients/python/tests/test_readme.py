"""The examples of the README do what they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shoal

from .harness import Server

README = Path(__file__).parent.parent / "README.md"
BLOCKS = [block.split("```")[0] for block in README.read_text().split("```python")[1:]]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("block", [block for block in BLOCKS if "tls=" not in block])
def test_an_example_runs(
    block: str,
    shared_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.tar").write_bytes(os.urandom(3 << 20))
    for kind in (shoal.Client, shoal.AsyncClient):
        monkeypatch.setattr(kind.__init__, "__defaults__", (shared_server.address,))
    exec(compile(block.replace("127.0.0.1:7411", shared_server.address), "README.md", "exec"), {})
    if (tmp_path / "out.tar").exists():
        assert (tmp_path / "out.tar").read_bytes() == (tmp_path / "in.tar").read_bytes()
    assert "Traceback" not in capsys.readouterr().out


def test_all_examples_are_python() -> None:
    assert len(BLOCKS) >= 5
    for block in BLOCKS:
        compile(block, "README.md", "exec")
