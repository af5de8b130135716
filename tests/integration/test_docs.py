"""What the documents show runs, and what they name exists."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_the_walk_from_text_to_translation_works(tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = ""
    for document in (*WALKS, ROOT / "docs" / "cluster.md"):
        for language, code in re.findall(
            r"```(sh|python)\n(.*?)```", document.read_text(), re.DOTALL
        ):
            command = ["sh", "-ec", code] if language == "sh" else [sys.executable, "-c", code]
            result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
            assert result.returncode == 0, result.stderr
            assert language == "sh" or result.stdout.startswith("['")
            said += result.stderr
    assert "going on after update 40" in said
    for written in ("models/first/model.safetensors", "runs/ranks/last/model.safetensors"):
        assert (tmp_path / written).exists()
    for name in (
        *("out.de", "sampled.de", "both.de", "out.jsonl", "out.links", "scores"),
        *("ct2.de", "onnx.de"),
    ):
        assert (tmp_path / name).read_bytes().count(b"\n") == 200, name
    assert "bleu" in json.loads((tmp_path / "report.json").read_text())
    assert list((tmp_path / "pictures").glob("*.png"))
    assert "first: en to de" in (tmp_path / "serve.log").read_text()


def test_the_example_of_graphs_runs() -> None:
    command = [sys.executable, str(ROOT / "examples/graphs.py")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    figures = re.findall(r"(?:the same to|largest difference) (\S+)", result.stdout)
    assert len(figures) == 3
    assert all(float(figure) < 1e-6 for figure in figures)


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


def test_the_tree_of_the_readme_is_the_tree() -> None:
    readme = (ROOT / "README.md").read_text()
    tree = readme.split("## The tree")[1].split("```")[1]
    for path in [*(ROOT / "src").rglob("*.py"), *ROOT.glob("benchmarks/*.py")]:
        if path.name != "__init__.py":
            assert f" {path.name} " in tree, path


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
