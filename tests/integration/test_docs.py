"""What the documents show runs, and what they name exists."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from messages import assert_mentions

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
WALKS = [ROOT / "docs" / f"{name}.md" for name in ("training", "translation", "engines", "serving")]
SNIPPETS = [
    pytest.param(code, id=f"{document.name}-{i}")
    for document in DOCUMENTS
    if document not in WALKS
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL))
]


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) >= 5


@pytest.mark.parametrize("code", SNIPPETS)
def test_a_snippet_runs(code: str) -> None:
    exec(compile(code, "snippet", "exec"), {})


# What makes the walk short: fewer sentences and updates.
SHORTER = {
    "--pairs 20000": "--pairs 2000",
    "head -200": "head -20",
    "--training.steps 40": "--training.steps 4",
    "--training.validate-every 20": "--training.validate-every 2",
    "--training.save-every 20": "--training.save-every 2",
    "--training.steps 60": "--training.steps 6",
    "--training.steps 20": "--training.steps 2",
    "--training.steps 8": "--training.steps 2",
}


@pytest.mark.unhooked
@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_walk_from_text_to_translation_works(short: bool, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    changes = {"8371": port, **(SHORTER if short else {})}
    blocks = [
        (language, code)
        for document in (*WALKS, ROOT / "docs" / "cluster.md")
        for language, code in re.findall(
            r"```(sh|python)\n(.*?)```", document.read_text(), re.DOTALL
        )
    ]
    text = "".join(code for _, code in blocks)
    assert [old for old in changes if old not in text] == []
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = ""
    try:
        for language, code in blocks:
            for old, new in changes.items():
                code = re.sub(rf"{re.escape(old)}\b", new, code)
            command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
            result = subprocess.run(
                command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=900
            )
            assert result.returncode == 0, result.stderr
            assert language == "sh" or result.stdout.startswith("['")
            said += result.stderr
    finally:  # whatever failed, the server ends
        pid = tmp_path / "server.pid"
        if pid.exists():
            with suppress(ProcessLookupError):
                os.kill(int(pid.read_text()), signal.SIGKILL)
    steps, lines = (4, 20) if short else (40, 200)
    assert_mentions(said, f"update {steps}")
    for written in ("models/first/model.safetensors", "runs/ranks/last/model.safetensors"):
        assert (tmp_path / written).exists()
    for name in (
        *("out.de", "sampled.de", "both.de", "out.jsonl", "out.links", "scores"),
        *("ct2.de", "onnx.de"),
    ):
        assert (tmp_path / name).read_bytes().count(b"\n") == lines, name
    assert "bleu" in json.loads((tmp_path / "report.json").read_text())
    assert list((tmp_path / "pictures").glob("*.png"))
    assert_mentions((tmp_path / "serve.log").read_text(), "first", "en to de", port)


@pytest.mark.unhooked
def test_the_example_of_graphs_runs() -> None:
    command = [sys.executable, str(ROOT / "examples/graphs.py")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    figures = re.findall(r"(?:the same to|largest difference) (\S+)", result.stdout)
    assert len(figures) == 3
    assert all(float(figure) < 1e-6 for figure in figures)


@pytest.mark.unhooked
def test_the_example_runs_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/attention.py"), "--out", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "right 100%" in result.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def test_tests_that_the_documents_name_exist() -> None:
    tests = "\n".join(path.read_text() for path in ROOT.glob("tests/*/*.py"))
    for document in DOCUMENTS:
        for name in re.findall(r"`(test_\w+)`", document.read_text()):
            assert f"def {name}" in tests, (document.name, name)


def test_targets_that_the_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(), re.DOTALL):
            for target in re.findall(r"^make ([\w-]+)", block, re.MULTILINE):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
