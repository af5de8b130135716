"""Run the commands of the documents in order, from text to a served model, and the examples."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
from messages import assert_mentions
from small_runs import forking_program

ROOT = Path(__file__).parents[2]
NAMES = ("training", "translation", "serving")
LONG_NAMES = (*NAMES, "engines", "cluster")
# Fewer sentences and updates, so that the commands take seconds.
SHORTER = {
    "--pairs 20000": "--pairs 2000",
    "--pairs 500": "--pairs 60",
    "head -200": "head -6",
    "--training.steps 40": "--training.steps 4",
    "--training.validate-every 20": "--training.validate-every 2",
    "--training.save-every 20": "--training.save-every 2",
    "--training.steps 60": "--training.steps 6",
}


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_walk_from_text_to_translation_works(short: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    changes = {"8371": port, **(SHORTER if short else {})}
    names = NAMES if short else LONG_NAMES
    documents = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in names)
    blocks = re.findall(r"```(sh|python)\n(.*?)```", documents, re.DOTALL)
    text = "".join(code for _, code in blocks)
    assert [old for old in changes if old not in text] == []
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    said = ""
    with ExitStack() as stack:
        stack.push(partial(end_server, tmp_path / "server.pid"))
        if short:
            path = f"{stack.enter_context(forking_program(tmp_path / 'bin'))}:{path}"
        for language, code in blocks:
            for old, new in changes.items():
                code = re.sub(rf"{re.escape(old)}\b", new, code)
            command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env=os.environ | {"PATH": path},
                timeout=900,
            )
            assert result.returncode == 0, result.stderr
            assert language == "sh" or result.stdout.startswith("['")
            said += result.stderr
    steps, lines = (4, 6) if short else (40, 200)
    assert_mentions(said, f"update {steps}")
    models, outputs = ["models/first"], ["out.de", "sampled.de", "both.de", "out.jsonl"]
    outputs += ["out.links", "scores"]
    if not short:
        models, outputs = [*models, "runs/ranks/last"], [*outputs, "ct2.de", "onnx.de"]
    for model in models:
        assert (tmp_path / model / "model.safetensors").exists()
    for name in outputs:
        assert (tmp_path / name).read_bytes().count(b"\n") == lines, name
    assert "bleu" in json.loads((tmp_path / "report.json").read_text())
    assert list((tmp_path / "pictures").glob("*.png"))
    assert_mentions((tmp_path / "serve.log").read_text(), "first", "en to de", port)


def end_server(pid: Path, error: object, *details: object) -> None:
    """Kill the server if an error has prevented the command that stops it."""
    if error is not None and pid.exists():
        with suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def test_the_example_of_graphs_runs() -> None:
    command = [sys.executable, str(ROOT / "examples/graphs.py")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    figures = re.findall(r"(?:the same to|largest difference) (\S+)", result.stdout)
    assert len(figures) == 3
    assert all(float(figure) < 1e-6 for figure in figures)


@pytest.mark.long
def test_the_example_runs_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/attention.py"), "--out", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "right 100%" in result.stdout
