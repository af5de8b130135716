"""Python in the documents runs, and what they name exists (commands: tests/system/test_walk.py)."""

import re
from pathlib import Path

import pytest
from conftest import SLOWEST_FILES
from inject_faults import Fault, read_faults

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
        for file, name in re.findall(
            r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`", document.read_text()
        ):
            assert f"def {name}" in (ROOT / file).read_text(), (document.name, file, name)


def test_targets_that_the_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for document in DOCUMENTS:
        for block in re.findall(r"```sh\n(.*?)```", document.read_text(), re.DOTALL):
            for target in re.findall(r"^make ([\w-]+)", block, re.MULTILINE):
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_that_start_first_exist() -> None:
    names = {path.name for path in ROOT.glob("tests/*/*.py")}
    assert set(SLOWEST_FILES) <= names


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: fault.name)
def test_a_fault_to_inject_fits_the_code(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.find) == 1
    compile(fault.applied(text), fault.file, "exec")
