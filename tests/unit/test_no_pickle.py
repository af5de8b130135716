"""Nothing in edgewise reads or writes files that can hold code.

One file reads those of other libraries, by PyTorch's reader that runs nothing of them.
"""

import ast
from pathlib import Path

import pytest

import edgewise

SOURCE = Path(edgewise.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
OF_TORCH = {"load", "save"}
READER = "interop/foreign_weights.py"
BUILTINS = {"eval", "exec", "compile", "__import__"}


def offences(code: str) -> list[str]:
    """What a file does that may run what it reads."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.partition(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module.partition(".")[0] in MODULES:
                found.append(node.module)
            if node.module in ("torch", "torch.serialization"):
                found += [f"torch.{a.name}" for a in node.names if a.name in OF_TORCH]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "torch" and node.attr in OF_TORCH:
                found.append(f"torch.{node.attr}")
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in BUILTINS:
                found.append(node.func.id)
            found += [k.arg for k in node.keywords if k.arg == "allow_pickle"]
    return found


def test_no_file_can_run_what_it_reads() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 40
    found = {str(path.relative_to(SOURCE)): offences(path.read_text("utf-8")) for path in files}
    assert {name: what for name, what in found.items() if what} == {READER: ["torch.load"]}


def test_the_attention_library_has_nothing_to_read_files_with() -> None:
    names = set[str]()
    for path in (SOURCE / "attention").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        nodes = list(ast.walk(tree))
        names |= {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
        names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        called = {node.func for node in nodes if isinstance(node, ast.Call)}
        assert "open" not in {func.id for func in called if isinstance(func, ast.Name)}
    assert {name.partition(".")[0] for name in names} <= {
        *("collections", "dataclasses", "edgewise", "functools", "importlib", "itertools"),
        *("jaxtyping", "math", "re", "reprlib", "torch", "typing", "warnings"),
    }


def test_the_one_reader_of_such_files_reads_data_only() -> None:
    tree = ast.parse((SOURCE / READER).read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = (node for node in calls if ast.unparse(node.func) == "torch.load")
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert given["weights_only"] == "True"
    (safe,) = (node for node in calls if "safe_globals" in ast.unparse(node.func))
    assert ast.unparse(safe) == "torch.serialization.safe_globals([Namespace])"


@pytest.mark.parametrize(
    ("code", "offence"),
    [
        ("import pickle", "pickle"),
        ("import os, pickle as p", "pickle"),
        ("from joblib.numpy_pickle import load", "joblib.numpy_pickle"),
        ("def f():\n    import marshal", "marshal"),
        ("x = torch.load('a')", "torch.load"),
        ("write = torch.save", "torch.save"),
        ("from torch import nn, load", "torch.load"),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("eval(text)", "eval"),
        ("if x:\n    exec(text)", "exec"),
    ],
)
def test_each_way_of_doing_so_would_be_found(code: str, offence: str) -> None:
    assert offences(code) == [offence]


@pytest.mark.parametrize(
    "code",
    ["model.eval()", "torch.compile(model)", "load_file(path)", "import re; re.compile('a')"],
)
def test_what_only_sounds_like_it_is_not_found(code: str) -> None:
    assert offences(code) == []
