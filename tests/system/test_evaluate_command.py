"""`edgewise evaluate`: what it prints and writes, and what it says to bad input."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from messages import assert_mentions

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.cli.main import BAD_DATA, INPUT_OUTPUT, USAGE, run
from edgewise.data.grammar import pairs
from edgewise.data.text import LONGEST_LINE
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import Translator
from edgewise.decoding.translator import EncodedTexts
from edgewise.evaluation import bleu, evaluate, table
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

SOURCES, REFERENCES = (list(side) for side in zip(*pairs(30, seed=1), strict=True))
OURS = [line.replace("der", "die") for line in REFERENCES]
THEIRS = [line.replace("e", "a") for line in REFERENCES]


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


class Given:
    """The files of a test, and the command with the source and the reference."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.source = write(folder / "test.en", SOURCES)
        self.reference = write(folder / "test.de", REFERENCES)
        self.ours = write(folder / "ours.de", OURS)
        self.theirs = write(folder / "theirs.de", THEIRS)

    def run(self, *arguments: str | Path) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. (A traceback would end the test.)"""
        self._capsys.readouterr()
        texts = ("--source", self.source, "--reference", self.reference)
        code = run(["evaluate", *texts, *map(str, arguments)])
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err

    def refused(self, code: int, *arguments: str | Path) -> str:
        """What the command says when it exits with this code."""
        before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        ended, stdout, stderr = self.run(*arguments)
        assert (ended, stdout) == (code, "")
        after = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        assert after == before
        return stderr.partition("edgewise: ")[2].removesuffix("\n")


@pytest.fixture
def given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Given:
    return Given(tmp_path, capsys)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model folder, as good as its initial values."""
    vocabulary = Vocabulary.train([*SOURCES, *REFERENCES], 330)
    settings = ModelSettings(
        encoder_layers=1, decoder_layers=1, d_model=16, heads=2, d_ff=24, max_distance=3
    )
    transformer = Transformer(settings, vocabulary.size)
    initialise(transformer, seed=1)
    folder = tmp_path_factory.mktemp("evaluate") / "model"
    write_model(folder, weights(transformer), settings, vocabulary, {})
    return folder


def test_the_table_is_on_stdout_and_nothing_else(given: Given) -> None:
    code, stdout, stderr = given.run("--translations", given.ours, "--against", given.theirs)
    assert (code, stderr) == (0, "")
    report = evaluate(SOURCES, OURS, REFERENCES, against=THEIRS)
    assert stdout == table(report, given.ours, given.theirs) + "\n"
    assert f"{report.bleu.value:6.2f}  BLEU\n        {report.bleu.signature}\n" in stdout


def test_json_on_stdout_comes_without_the_table(given: Given) -> None:
    code, stdout, stderr = given.run("--translations", given.ours, "--json", "-")
    assert (code, stderr) == (0, "")
    content = json.loads(stdout)
    assert {name: content.pop(name) for name in ("source", "reference", "system", "against")} == {
        "source": given.source,
        "reference": given.reference,
        "system": given.ours,
        "against": None,
    }
    assert content == json.loads(json.dumps(evaluate(SOURCES, OURS, REFERENCES).as_dict()))


def test_json_in_a_file_comes_with_the_table(given: Given) -> None:
    path = given.folder / "new folder" / "report.json"
    arguments = ("--translations", given.ours, "--against", given.theirs, "--json", path)
    code, stdout, _ = given.run(*arguments)
    assert code == 0
    assert stdout.startswith(f"30 sentences of {given.ours}\n")
    content = json.loads(path.read_text())
    assert content["against"] == given.theirs
    assert content["comparison"]["difference"] > 0
    assert_mentions(given.refused(USAGE, *arguments), path, "exists", "--overwrite")
    path.write_text("old")
    assert given.run(*arguments, "--overwrite")[0] == 0
    assert json.loads(path.read_text()) == content


def test_any_kind_of_text_file_gives_the_same_scores(given: Given, tmp_path: Path) -> None:
    expected = given.run("--translations", given.ours)[1]
    Path(given.source).write_bytes(gzip.compress(Path(given.source).read_bytes()))
    Path(given.reference).write_bytes(Path(given.reference).read_bytes().replace(b"\n", b"\r\n"))
    columns = write(tmp_path / "ours.tsv", [f"{i}\t{line}\tx" for i, line in enumerate(OURS)])
    code, stdout, _ = given.run("--translations", f"{columns}:2")
    assert code == 0
    assert stdout.replace(f"{columns}:2", given.ours) == expected


def test_no_other_character_than_a_line_feed_ends_a_line(given: Given) -> None:
    write(Path(given.ours), [line.replace(" ", "\u2028", 1) for line in OURS])
    code, stdout, _ = given.run("--translations", given.ours)
    assert code == 0
    assert stdout.startswith("30 sentences of ")


def test_empty_lines_are_translations_too(given: Given) -> None:
    given.ours = write(Path(given.ours), ["", *OURS[1:-1], ""])
    code, stdout, _ = given.run("--translations", given.ours, "--json", "-")
    assert code == 0
    expected = bleu(["", *OURS[1:-1], ""], REFERENCES).value
    assert json.loads(stdout)["bleu"]["value"] == expected


def test_a_model_translates_the_source_and_its_translations_are_kept(
    given: Given, model: Path, one_thread: None
) -> None:
    expected = Translator.load(model).translate(SOURCES)
    out = given.folder / "kept" / "model.de"
    code, stdout, stderr = given.run("--model", model, "--out", out, "--json", "-")
    assert (code, len(stderr.splitlines())) == (0, 1)
    assert_mentions(stderr, model, "0 of 30")
    assert out.read_text(encoding="utf-8") == "".join(
        line.replace("\n", " ") + "\n" for line in expected
    )
    from_model = json.loads(stdout)
    code, stdout, _ = given.run("--translations", out, "--against", model, "--json", "-")
    assert code == 0
    from_file = json.loads(stdout)
    assert from_model["system"] == from_file["against"] == str(model)
    assert from_model["bleu"] == from_file["bleu"]
    assert from_model["chrf"] == from_file["chrf"]
    assert from_file["comparison"]["p_value"] == 1


def test_what_is_kept_is_the_models_and_not_its_rivals(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = given.folder / "rival"
    rival.mkdir()

    class Named:
        """Translates everything by its name."""

        def __init__(self, folders: list[Path], *arguments: object, **options: object) -> None:
            self.name = folders[0].name

        def encode(self, texts: list[str]) -> EncodedTexts:
            return EncodedTexts(tuple(texts), ((),) * len(texts), {})

        def translate(self, texts: list[str]) -> list[str]:
            return [self.name] * len(texts)

    monkeypatch.setattr("edgewise.cli.evaluate.load_translator", Named)
    out = given.folder / "kept.de"
    assert given.run("--model", "mine", "--against", rival, "--out", out)[0] == 0
    assert out.read_text() == "mine\n" * 30


def test_tokenised_text_is_told_of_and_taken_as_it_is_on_request(given: Given) -> None:
    given.ours = write(Path(given.ours), [line.removesuffix(".") + " ." for line in OURS])
    code, _, stderr = given.run("--translations", given.ours, "--json", "-")
    assert (code, len(stderr.splitlines())) == (0, 1)
    assert_mentions(stderr, given.ours, given.reference, "--tokenised")
    code, stdout, stderr = given.run("--translations", given.ours, "--json", "-", "--tokenised")
    assert (code, stderr) == (0, "")
    assert "|tok:none|" in json.loads(stdout)["tokenised_lowercased_bleu"]["signature"]
    assert "|tok:13a|" in json.loads(stdout)["bleu"]["signature"]


def test_a_model_or_translations_must_be_given(given: Given) -> None:
    assert_mentions(given.refused(USAGE), "--model", "--translations", "neither")
    message = given.refused(USAGE, "--model", "m", "--translations", given.ours)
    assert_mentions(message, "--model", "--translations", "both")
    message = given.refused(USAGE, "--translations", given.ours, "--out", "x.de")
    assert_mentions(message, "--out", "--model", "--translations", given.ours)


def test_what_is_not_there_is_named(given: Given, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    for option in ("--translations", "--against"):
        arguments = () if option == "--translations" else ("--translations", given.ours)
        assert_mentions(given.refused(USAGE, *arguments, option, none), "file", none)
    assert_mentions(given.refused(USAGE, "--model", none), "model", none)
    assert_mentions(given.refused(USAGE, "--translations", tmp_path), tmp_path, "gzip")
    message = given.refused(BAD_DATA, "--translations", given.ours, "--against", tmp_path)
    assert_mentions(message, tmp_path, "model", "manifest.json")


def test_two_names_of_one_file_are_told(given: Given, model: Path) -> None:
    (given.folder / "sub").mkdir()
    (given.folder / "link").symlink_to("x.out")
    for other in ("sub/../x.out", "link"):
        paths = given.folder / "x.out", given.folder / other
        said = given.refused(USAGE, "--model", model, "--out", paths[0], "--json", paths[1])
        assert_mentions(said, "--out", "--json")


def test_what_is_read_is_never_written(given: Given, model: Path) -> None:
    for path in (given.source, given.reference, given.theirs, model / "config.json"):
        options = ("--model", model, "--against", given.theirs, "--overwrite")
        said = given.refused(USAGE, *options, "--json", path)
        assert_mentions(said, "--json", path)


def test_files_are_never_replaced_unasked(given: Given, model: Path) -> None:
    message = given.refused(USAGE, "--model", model, "--out", given.reference)
    assert_mentions(message, given.reference, "exists", "--overwrite")
    message = given.refused(USAGE, "--model", model, "--out", given.folder, "--overwrite")
    assert_mentions(message, given.folder, "file", "folder")
    new = given.folder / "new"
    message = given.refused(USAGE, "--model", model, "--out", new, "--json", new)
    assert_mentions(message, "--out", "--json", new)
    message = given.refused(USAGE, "--translations", given.ours, "--json", "--overwrite")
    assert_mentions(message, "--json", "--overwrite")


@pytest.mark.parametrize("which", ["reference", "ours", "theirs"])
def test_other_numbers_of_lines_are_told_with_both_files(given: Given, which: str) -> None:
    path = getattr(given, which)
    write(Path(path), REFERENCES[:29])
    message = given.refused(
        BAD_DATA, "--translations", given.ours, "--against", given.theirs, "--json", "-"
    )
    assert_mentions(message, path, given.source)
    assert_mentions(message.replace(str(given.folder), ""), 30, 29)


@pytest.mark.parametrize("which", ["source", "reference", "ours"])
def test_there_is_nothing_to_evaluate_in_an_empty_file(given: Given, which: str) -> None:
    path = getattr(given, which)
    write(Path(path), [])
    message = given.refused(BAD_DATA, "--translations", given.ours)
    assert_mentions(message, path, "empty")


@pytest.mark.parametrize("which", ["source", "reference", "ours", "theirs"])
@pytest.mark.parametrize(
    ("line", "reason"), [(b"caf\xe9", "UTF-8"), (b"x" * LONGEST_LINE, "too long"), (b"a\0", "NUL")]
)
def test_a_line_that_cannot_be_read_is_told_with_its_number(
    given: Given, which: str, line: bytes, reason: str
) -> None:
    path = Path(getattr(given, which))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:6], line, *lines[7:]]))
    message = given.refused(BAD_DATA, "--translations", given.ours, "--against", given.theirs)
    assert_mentions(message, "line 7", path, reason)


def test_a_line_without_the_column_is_told_with_its_number(given: Given, tmp_path: Path) -> None:
    path = write(tmp_path / "ours.tsv", [*(f"x\t{line}" for line in OURS[:4]), "x"])
    message = given.refused(BAD_DATA, "--translations", f"{path}:2")
    assert_mentions(message, "line 5", f"{path}:2", "column")


def test_one_sentence_is_scored_but_not_compared(given: Given) -> None:
    for path, lines in (
        (given.source, SOURCES),
        (given.reference, REFERENCES),
        (given.ours, OURS),
        (given.theirs, THEIRS),
    ):
        write(Path(path), lines[:1])
    assert given.run("--translations", given.ours)[0] == 0
    message = given.refused(BAD_DATA, "--translations", given.ours, "--against", given.theirs)
    assert_mentions(message, "--against", given.source)
    assert_mentions(message.replace(str(given.folder), ""), 2, 1)


def test_help_and_scores_of_files_do_without_torch(given: Given) -> None:
    arguments = ["--source", given.source, "--reference", given.reference]
    code = (
        "import sys; from edgewise.cli.main import run\n"
        f"run(['evaluate', *{arguments}, '--translations', {given.ours!r}])\n"
        "run(['evaluate', '--help'])\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    modules = done.stdout.splitlines()[-1].split()
    assert done.stderr == ""
    assert "edgewise.evaluation.report" in modules
    assert "torch" not in modules


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_and_a_reader_that_has_enough_is_not(given: Given) -> None:
    command = [sys.executable, "-m", "edgewise", "evaluate", "--translations", given.ours]
    command += ["--source", given.source, "--reference", given.reference]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == INPUT_OUTPUT
    last = result.stderr.splitlines()[-1]
    assert last.startswith("edgewise: ")
    assert_mentions(last, "No space left on device")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read().decode()
    assert process.returncode == 0
    assert "Error" not in said
