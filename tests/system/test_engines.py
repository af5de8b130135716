"""Engines beside ours: every option of `edgewise translate` works the same, or is refused by name;
`evaluate`, `score` and `serve` run them, too.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest
from messages import assert_mentions
from selection import long_except
from served import Server
from tiny_model import Command, Result, make_model, make_vocabulary
from torch import Tensor

from edgewise.cli.model_options import Running
from edgewise.cli.translate import translate
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import END, Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.settings import penalty
from edgewise.interop import ctranslate2, onnx
from edgewise.storage import MANIFEST, read_json, write_json

USAGE, BAD_DATA = 2, 65
SOURCES = [source for source, _ in pairs(24, 7)]
TEXT = "".join(f"{source}\n" for source in SOURCES)
ENGINES = ["ctranslate2", "onnx"]
# torch.export sees the hook's checks of shapes as part of the model.
pytestmark = [pytest.mark.unhooked, pytest.mark.usefixtures("one_thread")]


def ending(tensors: dict[str, Tensor]) -> None:
    """Some translations end by themselves, others at their limit."""
    tensors["embedding.weight"][END] *= 1.7


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return make_vocabulary()


@pytest.fixture(scope="module")
def folders(
    vocabulary: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Path]]:
    """Two models for each engine; one for ONNX, whose export takes about ten seconds."""
    folder = tmp_path_factory.mktemp("engines")
    native = [
        make_model(
            folder / f"model-{seed}",
            vocabulary,
            seed=seed,
            change=ending,
            languages=("en", "de"),
            tables="layer",
        )
        for seed in (1, 2)
    ]
    every = {"edgewise": native}
    for name, module, count in (("ctranslate2", ctranslate2, 2), ("onnx", onnx, 1)):
        every[name] = [folder / f"{name}-{i + 1}" for i in range(count)]
        for model, out in zip(native, every[name], strict=False):
            module.export(model, out)
    return every


@pytest.fixture
def run(tmp_path: Path, folders: dict[str, list[Path]]) -> Callable[..., Result]:
    """A command by an engine, with one model unless others are given."""
    command = Command(tmp_path)

    def called(name: str, engine: str, *arguments: str | Path, stdin: str = TEXT) -> Result:
        given = [] if "--model" in arguments else ["--model", folders[engine][0]]
        return command(name, "--engine", engine, *given, *arguments, stdin=stdin)

    return called


# Every option of the command, by its name in the signature, with flags that show it.
PENALTY_0 = ("--length-penalty", "0", "--extra-tokens", "4")
SAME: dict[str, tuple[str, ...]] = {
    "beam": (*PENALTY_0, "--beam", "3"),
    "length_penalty": (*PENALTY_0,),
    "n_best": (*PENALTY_0, "--n-best", "3", "--format", "jsonl"),
    "alternatives": (*PENALTY_0, "--n-best", "3", "--alternatives", "--format", "tsv"),
    "max_length": (
        "--length-penalty",
        "0",
        "--max-length",
        "6",
        "--n-best",
        "4",
        "--format",
        "tsv",
    ),
    "extra_tokens": ("--length-penalty", "0", "--extra-tokens", "0", "--format", "tsv"),
    "format": (*PENALTY_0, "--format", "jsonl"),
    "prefixes": (*PENALTY_0, "--prefixes", "PREFIXES", "--format", "tsv"),
    "alignments": (*PENALTY_0, "--alignments", "ALIGNMENTS", "--format", "jsonl"),
    "overwrite": (*PENALTY_0, "--alignments", "THERE", "--overwrite"),
    "device": (*PENALTY_0, "--device", "cpu"),
    "threads": (*PENALTY_0, "--threads", "1"),
    "batch_tokens": (*PENALTY_0, "--batch-tokens", "60", "--format", "tsv"),
    "max_source_tokens": (*PENALTY_0, "--max-source-tokens", "9", "--format", "tsv"),
}
SAMPLED = {
    "sample": (*PENALTY_0, "--sample", "--format", "tsv"),
    "temperature": (*PENALTY_0, "--sample", "--temperature", "0.5", "--format", "tsv"),
    "top_k": (*PENALTY_0, "--sample", "--top-k", "5", "--format", "tsv"),
    "top_p": (*PENALTY_0, "--sample", "--top-p", "0.5", "--format", "tsv"),
    "seed": (*PENALTY_0, "--sample", "--seed", "7", "--format", "tsv"),
}
OTHERS = {"min_length": (*PENALTY_0, "--min-length", "7", "--format", "tsv")}
REFUSED: dict[str, dict[str, tuple[object, ...]]] = {
    "ctranslate2": {
        **dict.fromkeys(SAMPLED, ("sample", "--engine ctranslate2")),
        "min_length": ("min_length", 0, "--engine ctranslate2", 7),
        "model": ("--engine ctranslate2", "--model", 2),
    },
    "onnx": {"device": ("--device", "cpu", "--engine onnx", "'cuda'")},
}


def test_every_option_of_translate_is_tried_here() -> None:
    own = {name for name in signature(translate).parameters if name not in ("decoding", "run")}
    options = own | {*DecodingSettings.model_fields} | {field.name for field in fields(Running)}
    assert options == {*SAME, *SAMPLED, *OTHERS, "model", "engine"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("option", [*SAME, *SAMPLED, *OTHERS])
def test_an_option_works_the_same_or_is_refused_by_name(
    option: str, engine: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    files = {name: tmp_path / name.lower() for name in ("PREFIXES", "ALIGNMENTS", "THERE")}
    flags = [str(files.get(flag, flag)) for flag in (SAME | SAMPLED | OTHERS)[option]]
    files["PREFIXES"].write_text("".join(("das\n", "\n", "der alte\n")[i % 3] for i in range(24)))
    results, written = [], []
    for name in ("edgewise", engine):
        files["THERE"].write_text("before")
        files["ALIGNMENTS"].unlink(missing_ok=True)
        results.append(run("translate", name, *flags))
        written.append([path.read_text() for path in files.values() if path.exists()])
    ours, theirs = results
    assert ours.code in (0, BAD_DATA) and len(ours.lines) >= len(SOURCES)
    if option in REFUSED[engine] and option != "device":
        assert theirs.code == USAGE
        assert theirs.said.startswith("edgewise: ")
        assert_mentions(theirs.said, *REFUSED[engine][option])
        assert theirs.out == b""
        return
    assert theirs.code == ours.code
    assert said(theirs) == said(ours)
    assert written[1] == written[0]
    assert_same(theirs.lines, ours.lines)


def said(result: Result) -> list[str]:
    return [line for line in result.said.splitlines() if not line.endswith(" s")]


def assert_same(theirs: list[str], ours: list[str]) -> None:
    """The same words and numbers, but for the last digits."""
    assert len(theirs) == len(ours)
    for one, other in zip(theirs, ours, strict=True):
        left, right = (numbers(json.loads(x) if x.startswith("{") else x) for x in (one, other))
        assert [x for x in left if isinstance(x, str)] == [x for x in right if isinstance(x, str)]
        values = [[x for x in side if isinstance(x, float)] for side in (left, right)]
        assert values[0] == pytest.approx(values[1], abs=1e-3, nan_ok=True)


def numbers(value: object) -> list[str | float]:
    """All strings and numbers of an object or a row."""
    if isinstance(value, dict):
        return [part for key, each in value.items() for part in [key, *numbers(each)]]
    if isinstance(value, list):
        return [part for each in value for part in numbers(each)]
    if isinstance(value, str) and "\t" in value:
        return [part for each in value.split("\t") for part in numbers(each)]
    try:
        return [float(value)] if isinstance(value, int | float | str) else []
    except ValueError:
        return [str(value)]


@pytest.mark.long
def test_several_models_run_together_by_onnx(
    run: Callable[..., Result], folders: dict[str, list[Path]], tmp_path: Path
) -> None:
    onnx.export(folders["edgewise"][1], tmp_path / "onnx-2")
    flags = (*PENALTY_0, "--format", "tsv")
    ours = run("translate", "edgewise", "--model", *folders["edgewise"], *flags)
    theirs = run("translate", "onnx", "--model", *folders["onnx"], tmp_path / "onnx-2", *flags)
    assert theirs.code == ours.code == 0
    assert_same(theirs.lines, ours.lines)


def test_several_models_are_refused_by_ctranslate2(
    run: Callable[..., Result], folders: dict[str, list[Path]]
) -> None:
    refused = run("translate", "ctranslate2", "--model", *folders["ctranslate2"])
    assert refused.code == USAGE
    assert_mentions(refused.said, *REFUSED["ctranslate2"]["model"])


def test_onnx_runs_on_cpus_only(run: Callable[..., Result]) -> None:
    refused = run("translate", "onnx", "--device", "cuda")
    assert refused.code == USAGE
    assert_mentions(refused.said, *REFUSED["onnx"]["device"])


def test_ctranslate2_s_hypotheses_are_ranked_by_our_length_penalty(
    run: Callable[..., Result],
) -> None:
    flags = ("--length-penalty", "1", "--n-best", "4", "--format", "jsonl", "--extra-tokens", "4")
    lengths = set()
    for line in run("translate", "ctranslate2", *flags).lines:
        found = json.loads(line)["translations"]
        scores = [each["score"] for each in found]
        assert scores == sorted(scores, reverse=True)
        for each in found:
            lengths.add(length := len(each["pieces"]) + 1)
            assert each["score"] == pytest.approx(each["log_probability"] / penalty(length, 1))
    assert len(lengths) > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_score_and_evaluate_give_what_ours_gives(
    engine: str, run: Callable[..., Result], tmp_path: Path
) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text(TEXT)
    target.write_text("".join(f"{text}\n" for _, text in pairs(24, 7)))
    files = ("--source", source)
    scored = [run("score", name, *files, "--target", target) for name in ("edgewise", engine)]
    assert_same(scored[1].lines, scored[0].lines)
    files = (*files, "--reference", target, *PENALTY_0, "--json", "-")
    reports = [json.loads(run("evaluate", name, *files).out) for name in ("edgewise", engine)]
    assert reports[1]["bleu"] == reports[0]["bleu"]
    assert reports[1]["chrf"] == reports[0]["chrf"]


@pytest.mark.parametrize("engine", ["edgewise", *ENGINES])
def test_evaluate_compares_engines_and_writes_the_card(
    engine: str,
    run: Callable[..., Result],
    folders: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folders[engine][0], folder)
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text(TEXT)
    target.write_text("".join(f"{text}\n" for _, text in pairs(24, 7)))
    flags = ("--model", folder, "--source", source, "--reference", target, *PENALTY_0, "--card")
    against = ("--against", str(folders["edgewise"][0]), "--json", "-")
    done = run("evaluate", engine, *flags, *against)
    assert done.code == 0, done.said
    report = json.loads(done.out)
    assert report["comparison"]["difference"] == pytest.approx(0, abs=1e-9)
    card = (folder / "README.md").read_text()
    bleu, signature = report["bleu"]["value"], report["bleu"]["signature"]
    row = f"| a.en, a.de | 24 | beam 4, length penalty 0, extra tokens 4 | {bleu:.1f} | "
    assert row in card and f"`{signature}`" in card
    # Again, and with another search: one row each; and the folder is whole.
    assert run("evaluate", engine, *flags).code == 0
    assert run("evaluate", engine, *flags, "--beam", "1").code == 0
    assert (folder / "README.md").read_text().count("| a.en, a.de |") == 2
    assert run("translate", engine, "--model", folder, *PENALTY_0).code == 0
    assert sorted(path.name for path in tmp_path.glob(".copy*")) == []


def test_a_card_is_of_one_model(run: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("a\n")
    done = run(
        *("evaluate", "edgewise", "--model", "x", "y", "--card", "--source", file),
        *("--reference", file),
    )
    assert done.code == USAGE
    assert_mentions(done.said, "--card", "--model", 2)


@pytest.mark.parametrize("engine", long_except(["ctranslate2"], ENGINES))
def test_it_serves(engine: str, run: Callable[..., Result], folders: dict[str, list[Path]]) -> None:
    flags = ("--engine", engine, "--model", f"en-de={folders[engine][0]}")
    expected = run("translate", "edgewise").lines
    with Server(*flags) as server:
        asked = {"q": SOURCES, "source": "en", "target": "de"}
        found = server.client.post("/translate", json=asked).json()["translatedText"]
        same = sum(one == other for one, other in zip(found, expected, strict=True))
        # With the length penalty, CTranslate2's search can find others.
        assert same == len(SOURCES) if engine == "onnx" else same > len(SOURCES) / 2
        (model,) = server.client.get("/models").json()["models"]
        assert model["explained"] is False and model["parameters"] > 10_000
        one = {"q": SOURCES[0], "source": "en", "target": "de"}
        answer = server.client.post("/explain", json=one)
        assert answer.status_code == 400
        assert_mentions(answer.json()["error"], "edgewise")
        assert server.client.get("/tables").status_code == 400
        others = server.client.post("/alternatives", json=one | {"alternatives": 3})
        assert others.status_code == 200 and others.json()["alternatives"]


# Bad input.


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_that_is_no_model_is_told(
    engine: str,
    run: Callable[..., Result],
    folders: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    done = run("translate", engine, "--model", folders["edgewise"][0])
    assert done.code == USAGE
    assert_mentions(done.said, folders["edgewise"][0], "--engine edgewise", f"--engine {engine}")
    done = run("translate", "edgewise", "--model", folders[engine][0])
    assert done.code == USAGE
    assert_mentions(done.said, folders[engine][0], "--engine edgewise", f"--engine {engine}")
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run("translate", engine, "--model", empty)
    assert done.code == BAD_DATA
    assert_mentions(done.said, empty, "manifest.json")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_version_is_told(
    engine: str,
    run: Callable[..., Result],
    folders: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(folders[engine][0], folder)
    write_json(folder / MANIFEST, read_json(folder / MANIFEST) | {"version": 99})
    done = run("translate", engine, "--model", folder)
    assert done.code == BAD_DATA
    assert_mentions(done.said, folder, "version 99")


@pytest.mark.parametrize(
    ("engine", "file"), [("ctranslate2", "model.bin"), ("onnx", "decoder.onnx")]
)
@pytest.mark.parametrize("resealed", [False, True])
def test_damaged_weights_are_told(
    engine: str,
    file: str,
    resealed: bool,
    run: Callable[..., Result],
    folders: dict[str, list[Path]],
    tmp_path: Path,
) -> None:
    from edgewise.storage import seal

    folder = tmp_path / "copy"
    shutil.copytree(folders[engine][0], folder)
    (folder / file).write_bytes(b"\x06\x00\x00\x00no weights at all")
    if resealed:
        (folder / MANIFEST).unlink()
        module = {"ctranslate2": ctranslate2, "onnx": onnx}[engine]
        seal(folder, module.KIND, module.VERSION)
    done = run("translate", engine, "--model", folder)
    assert done.code == BAD_DATA
    runtime = {"ctranslate2": "CTranslate2", "onnx": "ONNX Runtime"}[engine]
    assert_mentions(done.said, folder, runtime if resealed else file)


def test_onnx_replaces_a_folder_of_its_own_kind_only(
    run: Callable[..., Result], folders: dict[str, list[Path]], tmp_path: Path
) -> None:
    command = Command(tmp_path)
    native, before = folders["edgewise"][0], read_json(folders["onnx"][0] / MANIFEST)
    flags = ("export", "onnx", "--model", native, "--out")
    done = command(*flags, folders["onnx"][0])
    assert done.code == USAGE
    assert_mentions(done.said, folders["onnx"][0], "--overwrite")
    done = command(*flags, native, "--force")
    assert done.code == USAGE
    assert_mentions(done.said, native, "ONNX")
    assert read_json(folders["onnx"][0] / MANIFEST) == before
