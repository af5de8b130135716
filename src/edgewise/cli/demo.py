"""edgewise demo."""

import time
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from edgewise.cli.console import say
from edgewise.cli.data import write
from edgewise.data.corpus import KIND as CORPUS
from edgewise.data.encode import cores
from edgewise.data.grammar import pairs
from edgewise.data.prepare import Bitext, prepare
from edgewise.data.text import TextFile
from edgewise.errors import SettingError
from edgewise.storage import MANIFEST, kind_of, require_free_folder, write_json

KIND, VERSION = "demo", 1
MODEL = "model"  # the kind of a model folder; its module imports PyTorch
TRAIN, VALID, TEST = 120_000, 500, 500
VOCABULARY = 2000
CONFIG = Path(__file__).parents[3] / "configs" / "demo.toml"


def demo(
    *,
    out: Path = Path("runs/demo"),
    config: Path = CONFIG,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Train two small translators on the built-in corpus: with relative positions, and without.

    Takes about five minutes on two cores. Prints the BLEU of both and a few translations, draws
    attention, and leaves the model with relative positions at `model` in the folder, from where
    `edgewise serve` takes it.

    ```sh
    edgewise demo
    ```

    Parameters
    ----------
    out
        Folder to write.
    config
        Settings of the model with relative positions.
    overwrite
        Start afresh, even if there are models in the folder already.
    """
    from edgewise.checkpoint.model_folder import copy_model
    from edgewise.cli.pictures import picture_attention, require_matplotlib
    from edgewise.cli.training_progress import TrainingProgress
    from edgewise.decoding import Translator
    from edgewise.evaluation import bleu
    from edgewise.training.loop import train
    from edgewise.training.memory import keep_freed_memory
    from edgewise.training.settings import RunSettings

    if not config.is_file():
        raise SettingError(
            f"there is no {config}: the demo's settings are in a checkout of edgewise, "
            "configs/demo.toml; give them with --config"
        )
    require_matplotlib()
    base = RunSettings.read(config)
    _require_demo(out, overwrite=overwrite)
    keep_freed_memory()
    corpus = _corpus(out, overwrite)
    unplaced = base.model.model_copy(update={"max_distance": None, "sinusoids": False})
    models, translators = {}, {}
    for name, model in (("relative", base.model), ("none", unplaced)):
        settings = base.model_copy(update={"corpus": corpus, "out": out / name, "model": model})
        say(f"\n[bold]{TITLES[name]}[/]", markup=True)
        start = time.monotonic()
        with TrainingProgress(settings.training.steps) as reporter:
            train(settings, overwrite=overwrite, reporter=reporter)
        say(f"trained in {time.monotonic() - start:.0f} s")
        # A run that is shorter than `validate_every` has no best model.
        kind = "best" if (settings.out / "best").is_dir() else "last"
        models[name] = settings.out / kind
        translators[name] = Translator.load(models[name])
    copy_model(models["relative"], out / "model")

    sources, references = zip(*_unseen(), strict=True)
    translations = {name: each.translate(sources, beam=1) for name, each in translators.items()}
    say(f"\n[bold]Translations of {TEST} new sentences, by greedy decoding[/]", markup=True)
    scores = {name: bleu(translations[name], references) for name in TITLES}
    write_json(out / "bleu.json", {name: asdict(score) for name, score in scores.items()})
    for name, title in TITLES.items():
        say(f"  {title:24} BLEU {scores[name]}")
    differ = (i for i in range(TEST) if translations["none"][i] != translations["relative"][i])
    for i in islice(differ, 3):
        say(f"\n  English    {sources[i]}\n  German     {references[i]}")
        for name in TITLES:
            say(f"  {name:10} {translations[name][i]}")
    picture = picture_attention(translators["relative"], sources[0], out / "attention")
    say(f"\nAttention, each logit in its content and its position part: {picture}")
    say(f"The model: {out / 'model'}; in a browser: edgewise serve --model {out / 'model'}")


TITLES = {"relative": "With relative positions", "none": "Without positions"}


def _require_demo(out: Path, *, overwrite: bool) -> None:
    """Raise SettingError if a demo would replace what another command or a person has put there.

    A folder that an earlier demo has begun is marked by its manifest, and gone on with.
    """
    if kind_of(out) != KIND and not _is_unmarked_demo(out):
        made = (MANIFEST, "text", "corpus", *TITLES, "model", "bleu.json", "attention")
        for path in (out / name for name in made):
            if path.exists():
                raise SettingError(
                    f"{path} exists, and no demo has written it: choose another --out, or remove it"
                )
    require_free_folder(out / "model", MODEL, overwrite=True)
    require_free_folder(out / "corpus", CORPUS, overwrite=True)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / MANIFEST, {"kind": KIND, "version": VERSION, "files": {}})


def _is_unmarked_demo(out: Path) -> bool:
    """Whether an older version, which left no mark, has begun a demo here."""
    return kind_of(out / "corpus") == CORPUS and (out / "relative" / "run.json").is_file()


def _corpus(out: Path, overwrite: bool) -> Path:
    """Text files and a prepared corpus; those of an earlier demo are kept."""
    corpus = out / "corpus"
    if corpus.exists() and not overwrite:
        return corpus
    say(f"{TRAIN:,} pairs of English and German, by a grammar")
    train = _bitext(out / "text" / "train", TRAIN, seed=1)
    valid = _bitext(out / "text" / "valid", VALID, seed=2)
    prepare(corpus, [train], [valid], vocab=VOCABULARY, workers=cores(), overwrite=overwrite)
    return corpus


def _bitext(name: Path, count: int, seed: int) -> Bitext:
    english, german = write(count, name, seed)
    return Bitext(TextFile(english), TextFile(german))


def _unseen() -> list[tuple[str, str]]:
    """Return pairs whose source is not among those trained on."""
    seen = {source for source, _ in pairs(TRAIN, seed=1)}
    fresh = (pair for pair in pairs(100 * TEST, seed=3) if pair[0] not in seen)
    return [pair for pair, _ in zip(fresh, range(TEST), strict=False)]
