"""What requests and answers look like; the names are LibreTranslate's where it has them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Stack = Literal["cross", "encoder", "decoder"]
Code = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        description="Code of a language, as /languages has them.",
        examples=["en"],
    ),
]
Model = Annotated[
    str | None,
    Field(
        max_length=256,
        description="Name of a model, as /models has them; else the first of the two languages.",
    ),
]
MOST_TEXTS, MOST_ALTERNATIVES = 1000, 10
SHOWN = 60  # characters of what a client sent, in a message


def shortened(text: str, most: int = SHOWN) -> str:
    """What a stranger sent may be long, also where it is only named."""
    return text if len(text) <= most else text[: most - 1] + "…"


class Error(BaseModel):
    """Why there is no answer."""

    error: str


class Asked(BaseModel):
    """What all requests have; what else a client sends is not looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: Code = Field("auto", description="auto: the only one that the target allows.")
    target: Code = Field(examples=["de"])
    model: Model = None

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        if isinstance(value, bool):  # which is a number to Python
            raise ValueError(f"must be a string or a number; got {str(value).lower()}")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _plain(cls, value: object) -> object:
        """Text that can be written down: no NUL, no half of a pair."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                if "\0" in text:
                    raise ValueError("must not have the character NUL")
                try:
                    text.encode()
                except UnicodeEncodeError:
                    raise ValueError("must be text; it has half of a surrogate pair") from None
        return value


class TranslateRequest(Asked):
    """Texts to translate."""

    q: str | Annotated[list[str], Field(max_length=MOST_TEXTS)] = Field(
        description="A text, or a list of texts.", examples=["The child reads the book."]
    )
    format: Literal["text", "html"] = Field(
        "text", description="html: tags stay as they are, the text between them is translated."
    )
    alternatives: int = Field(
        0, ge=0, le=MOST_ALTERNATIVES, description="How many others of each text are wanted."
    )

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class Detected(BaseModel):
    """Which language auto stood for."""

    language: str
    confidence: float = Field(description="0: it was the only one there is, nothing was detected.")


class TranslateAnswer(BaseModel):
    """A text where one was asked for, else a list; so with the others."""

    translatedText: str | list[str]  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815


class StreamedSentence(BaseModel):
    """A line of a stream. What stands `before` and the `translation`, line after line, is the text.

    The last line of a text has what stands after its last sentence, and no translation.
    """

    text: int = Field(description="Which text it is of, from 0.")
    before: str
    source: str
    translation: str
    error: str | None = Field(None, description="Why nothing comes any more.")


class AlternativesRequest(Asked):
    """Other ways to go on from a prefix."""

    q: str = Field(description="One sentence.", examples=["The child reads the book."])
    prefix: str = Field("", description="How the translation begins.", examples=["Das Kind"])
    alternatives: int = Field(5, ge=1, le=MOST_ALTERNATIVES, description="How many, at most.")


class Alternative(BaseModel):
    """A translation of a sentence."""

    text: str
    score: float = Field(description="Log-probability with the length penalty.")


class AlternativesAnswer(BaseModel):
    """Translations that differ in the word after the prefix, the best first."""

    alternatives: list[Alternative]


class ExplainRequest(Asked):
    """A sentence whose attention is wanted."""

    q: str = Field(description="One sentence.", examples=["The child reads the book."])
    translation: str | None = Field(None, description="What to explain; else the model's own.")
    stack: Stack = Field(
        "cross", description="cross: from the translation to the sentence; else within one of them."
    )


class Head(BaseModel):
    """A row for each query, a column for each key."""

    weights: list[list[float]]
    content: list[list[float]] = Field(description="The first part of each logit (Eq. 5, scaled).")
    position: list[list[float]] | None = Field(
        description="The second part; null without positions in these keys."
    )


class ExplainAnswer(BaseModel):
    """What each head of each layer looked at, and why."""

    model: str
    translation: str
    stack: Stack
    queries: list[str] = Field(description="Pieces. Of cross: those that were being written.")
    keys: list[str] = Field(description="Pieces that were looked at.")
    query_words: list[int] = Field(description="Which word each piece is of; -1: of none.")
    key_words: list[int]
    max_distance: int | None
    layers: list[list[Head]] = Field(description="Layers of heads.")


class TablesAnswer(BaseModel):
    """The relative positions of a layer: of each head (or of all), a row for each distance."""

    distances: list[int]
    shared: bool = Field(description="Whether all heads have the same.")
    keys: list[list[list[float]]] | None
    values: list[list[list[float]]] | None


class Language(BaseModel):
    """What can be translated to what."""

    code: str
    name: str
    targets: list[str]


class ServedModel(BaseModel):
    """A model, and how it is built."""

    name: str
    source: str
    target: str
    explained: bool = Field(description="Whether /explain and /tables have it.")
    parameters: int
    vocabulary: int
    encoder_layers: int
    decoder_layers: int
    heads: int
    d_model: int
    max_distance: int | None
    sinusoids: bool
    tables: Literal["head", "layer", "shared"]
    on_keys: bool
    on_values: bool


class ModelsAnswer(BaseModel):
    """The models, and what may be asked of them."""

    models: list[ServedModel]
    characters: int = Field(description="At most so many in a request.")
    explained_tokens: int


class Status(BaseModel):
    """ok, or why not."""

    status: str
