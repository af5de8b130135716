"""edgewise evaluate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from edgewise.cli.console import require_streams, say, stage_progress
from edgewise.cli.model_options import Decoding, Models, Run, load_translator, run_of
from edgewise.data.encode import EMPTY, readable
from edgewise.data.text import TextFile
from edgewise.errors import DataError, SettingError
from edgewise.storage import require_free_files, write_json, write_text

if TYPE_CHECKING:
    from edgewise.decoding import DecodingSettings, Translator
    from edgewise.evaluation import Report

WINDOW = 512


def evaluate(
    *,
    source: str,
    reference: str,
    model: Models | None = None,
    translations: str | None = None,
    against: str | None = None,
    decoding: Decoding = None,
    tokenised: Annotated[bool, Parameter(negative=())] = False,
    out: Path | None = None,
    json_file: Annotated[Path | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
    card: Annotated[bool, Parameter(negative=())] = False,
    run: Run = None,
) -> None:
    """Score a model's translations, or those of a file: BLEU and chrF, also by source length.

    Files have one sentence a line, plain or gzip; `a.tsv:2` is the second column of
    tab-separated values. Intervals are of 95 %, by 1000 bootstrap resamples.

    ```sh
    edgewise evaluate --model runs/demo/model --source test.en --reference test.de --card
    edgewise evaluate --translations ours.de --source test.en --reference test.de \\
        --against theirs.de --json report.json
    ```

    Parameters
    ----------
    source
        File in the language to translate from.
    reference
        Its translation by people.
    model
        Model folder to translate the source with; several translate together.
    translations
        File of translations, instead of a model.
    against
        Model folder, of any engine, or file of translations to compare with, by paired bootstrap
        resampling.
    tokenised
        Reference and translations are tokenised: the BLEU for older papers takes their tokens.
    out
        File to write the model's translations to.
    json_file
        File to write all scores to, as JSON; - is standard output, instead of the table.
    overwrite
        Replace the files if they are there.
    card
        Write the scores into the model's card, its README.md.
    """
    from edgewise.evaluation import evaluate as scored
    from edgewise.evaluation import table

    require_streams("stdout")
    if (not model) == (translations is None):
        given = "neither" if not model else "both"
        raise SettingError(f"--model or --translations must be given, one of them; got {given}")
    if card and len(model or []) != 1:
        raise SettingError(f"--card is of one --model; got {len(model or [])}")
    if out is not None and not model:
        raise SettingError(
            f"--out keeps what --model translates; got --translations {translations}"
        )
    if json_file is not None and str(json_file).startswith("--"):
        raise SettingError(f"--json must have a file or -; got the option {json_file}")
    report_file = None if json_file == Path("-") else json_file
    targets = {"--out": out, "--json": report_file}
    files, models = [source, reference], dict[str, list[Path]]()
    if translations is not None:
        system = translations
        files.append(system)
    else:
        system = " + ".join(map(str, model or []))
        models[system] = list(model or [])
    if against is not None and Path(against).is_dir():
        models[against] = [Path(against)]
    elif against is not None:
        files.append(against)
    parsed = {name: TextFile.parse(name) for name in files}
    read = [file.path for file in parsed.values()]
    read += [folder for folders in models.values() for folder in folders]
    require_free_files(targets, overwrite=overwrite, used={str(path): path for path in read})
    texts = {name: sentences(file) for name, file in parsed.items()}
    require_same_lines(texts)
    if against is not None and len(texts[source]) < 2:
        raise DataError(f"--against must have 2 lines or more to resample; {source} has 1")

    translators = {  # all, before the first takes its time
        name: load_translator(folders, run if name == system else run_of(Path(name), run), decoding)
        for name, folders in models.items()
    }
    for translator in translators.values():
        for number, refusal in translator.encode(texts[source]).refusals.items():
            raise DataError(f"line {number + 1:,} of {source} {refusal}")
    for name, translator in translators.items():
        texts[name] = translated(translator, texts[source], name)
        if out is not None and name == system:
            write_text(out, "".join(f"{line}\n" for line in texts[name]))
    if not tokenised and looks_tokenised(texts[system]):
        say(f"{system} looks tokenised: if it is, and {reference} too, give --tokenised")
    report = scored(
        *(texts[source], texts[system], texts[reference]),
        against=None if against is None else texts[against],
        tokenised=tokenised,
    )
    content = {"source": source, "reference": reference, "system": system, "against": against}
    if report_file is not None:
        write_json(report_file, content | report.as_dict())
    if report_file == json_file:
        print(table(report, system, against or ""))
    else:
        print(json.dumps(content | report.as_dict(), indent=1))
    if card:
        write_score(Path(system), translators[system].settings, (source, reference), report)


def write_score(
    folder: Path, settings: "DecodingSettings", test: tuple[str, str], report: "Report"
) -> None:
    """Put the scores into a model's card."""
    from edgewise.checkpoint.card import Scored, add_score

    add_score(
        folder,
        Scored(
            source=Path(test[0]).name,
            reference=Path(test[1]).name,
            sentences=report.sentences,
            search=settings.described(),
            bleu=report.bleu.value,
            bleu_signature=report.bleu.signature,
            chrf=report.chrf.value,
            chrf_signature=report.chrf.signature,
        ),
    )
    say(f"the scores are in {folder / 'README.md'}")


def translated(translator: "Translator", texts: Sequence[str], name: str) -> list[str]:
    """The translations of a model, with progress."""
    result: list[str] = []
    with stage_progress() as progress:
        for start in range(0, len(texts), WINDOW):
            progress(f"{name} translates", start, len(texts))
            result += translator.translate(texts[start : start + WINDOW])
        progress(f"{name} translates", len(texts), len(texts))
    return result


def sentences(file: TextFile) -> list[str]:
    """The lines of a file, empty ones too; DataError if one cannot be read."""
    texts = []
    for number, line in enumerate(file.lines(), start=1):
        reason = readable(line)
        if line is None or reason not in ("", EMPTY):
            raise DataError(f"line {number:,} of {file} is unusable: {reason}")
        texts.append(line.decode())
    return texts


def require_same_lines(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise DataError unless there are lines, and as many in each file."""
    (first, lines), *others = texts.items()
    for name, given in texts.items():
        if not given:
            raise DataError(f"{name} is empty: there is nothing to evaluate")
    for name, given in others:
        if len(given) != len(lines):
            raise DataError(
                f"{name} must have as many lines as {first}, {len(lines):,}; it has {len(given):,}"
            )


def looks_tokenised(texts: Sequence[str]) -> bool:
    """Most lines end with a full stop that stands alone."""
    return sum(text.endswith(" .") for text in texts) > len(texts) / 2
