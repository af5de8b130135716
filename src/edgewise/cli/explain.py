"""edgewise explain."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from edgewise.cli.console import console, require_streams, say
from edgewise.data.vocabulary import BEGIN
from edgewise.errors import SettingError
from edgewise.storage import new_folder, require_free_folder, seal, write_json

KIND, VERSION = "explanation", 1
Sentence = Annotated[str, Parameter(allow_leading_hyphen=True)]


def explain(
    *,
    model: Path,
    text: Sentence,
    translation: Sentence | None = None,
    out: Path,
    overwrite: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Draw what a model attends to when it translates a sentence, and why.

    Each head's logits in their content and their position part, and its weights; the tables of
    relative positions; the weight by distance, which is also in `explanation.json`. Prints the
    names of the pictures.

    ```sh
    edgewise explain --model runs/demo/model --text "the child reads the book ." --out pictures
    edgewise explain --model runs/demo/model --text "the child reads the book ." \\
        --translation "das Kind liest das Buch ." --out pictures --overwrite
    ```

    Parameters
    ----------
    model
        Model folder.
    text
        Sentence to translate.
    translation
        What to explain. [default: the model's own translation]
    out
        Folder to write.
    overwrite
        Replace the folder if it is there.
    """
    from edgewise.checkpoint.model_folder import load_model
    from edgewise.cli.pictures import figures, require_matplotlib, require_readable, save
    from edgewise.decoding import Translator, explanation
    from edgewise.decoding.native import NativeEngine
    from edgewise.decoding.sources import as_read
    from edgewise.decoding.translator import folder_settings

    require_streams("stdout")
    require_matplotlib()
    require_sentence("--text", text)
    if translation is not None:
        require_sentence("--translation", translation)
    require_free_folder(out, KIND, overwrite=overwrite)
    transformer, vocabulary = load_model(model)
    source = as_read(vocabulary.encode([text])[0], transformer.settings)
    require_readable("--text", source)
    if translation is None:
        translator = Translator(NativeEngine([transformer], vocabulary), folder_settings(model))
        (translation,) = translator.translate([text])
    target = [BEGIN, *vocabulary.encode_target([translation])[0]]
    require_readable("the translation", target)
    say(f"translation: {translation}")
    explained = explanation.explain(transformer, source, target)
    with new_folder(out) as new, console.status("drawing") as status:
        drawn = figures(explained, transformer, vocabulary)
        names = save(drawn, new, lambda name: status.update(f"drawing {name}"))
        write_json(new / "explanation.json", explanation.summary(explained, vocabulary))
        seal(new, KIND, VERSION)
    for name in names:
        print(out / name)
    say(f"pieces and weights by distance: {out / 'explanation.json'}")


def require_sentence(name: str, text: str) -> None:
    """Raise unless there is something to read."""
    if not text.strip():
        raise SettingError(f"{name} must be a sentence; got an empty one")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise SettingError(f"{name} must be UTF-8; got {text!r}") from None
