"""Settings of beam search and sampling; the defaults are the paper's."""

from pydantic import Field, model_validator

from edgewise.settings import Settings

SAMPLING = frozenset(("temperature", "top_k", "top_p", "seed"))
LONGEST = 100_000
# Of the sources, times hypotheses, computed together.
BATCH_TOKENS = 4096
# The longest source that is translated unless more is asked for: beyond it a model has learnt
# nothing, and the time grows with the square.
MAX_SOURCE_TOKENS = 1024


class DecodingSettings(Settings):
    """Settings of decoding, which generation_config.json of a model folder may set."""

    beam: int = Field(4, ge=1, le=64, description="Beam size; 1 is greedy decoding.")
    length_penalty: float = Field(
        0.6, ge=0, le=10, description="Exponent p: score = log-probability / ((5 + length) / 6)^p."
    )
    n_best: int = Field(1, ge=1, le=64, description="Translations per sentence.")
    alternatives: bool = Field(
        False, description="Give translations with the n_best likeliest tokens after the prefix."
    )
    min_length: int = Field(
        0, ge=0, le=LONGEST, description="Minimum length of a translation, in tokens."
    )
    max_length: int | None = Field(
        None,
        ge=1,
        le=LONGEST,
        description="Maximum length of a translation, in tokens; none: see extra_tokens.",
    )
    extra_tokens: int = Field(
        50,
        ge=0,
        le=LONGEST,
        description="Maximum length is the source length plus this, unless max_length is given.",
    )
    sample: bool = Field(False, description="Sample tokens instead of beam search.")
    temperature: float = Field(
        1.0, ge=1e-6, le=1e6, description="Sampling temperature; lower values favour likely tokens."
    )
    top_k: int | None = Field(
        None, ge=1, le=1 << 20, description="Sample from the k most likely tokens."
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Sample from the smallest set of tokens with this total probability.",
    )
    seed: int = Field(0, ge=0, description="Seed for sampling.")

    @model_validator(mode="after")
    def _consistent(self) -> "DecodingSettings":
        if not self.sample and not self.alternatives and self.n_best > self.beam:
            raise ValueError(
                f"n_best must be at most beam; got n_best={self.n_best}, beam={self.beam}"
            )
        if self.max_length is not None and self.min_length > self.max_length:
            raise ValueError(
                f"min_length must be at most max_length; got min_length={self.min_length}, "
                f"max_length={self.max_length}"
            )
        unused = [
            name
            for name in sorted(SAMPLING)
            if getattr(self, name) != type(self).model_fields[name].default
        ]
        if self.sample and self.alternatives:
            raise ValueError("alternatives are searched for; sample draws them: give one of both")
        if not self.sample and unused:
            raise ValueError(f"{unused[0]} is a setting of sampling, which needs sample")
        return self

    @property
    def slots(self) -> int:
        """Return how many hypotheses of a sentence are computed together."""
        return self.n_best if self.sample else self.beam

    def described(self) -> str:
        """Return a short description: beam, length penalty, and what is not the default."""
        first = ("sample",) if self.sample else ("beam", "length_penalty")
        said = []
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name in first or value != field.default:
                shown = "" if value is True else f" {value:g}"
                said.append(f"{name.replace('_', ' ')}{shown}")
        return ", ".join(said)

    def limit(self, source: int, prefix: int = 0) -> int:
        """Return the maximum tokens of a translation of `source` tokens, ends not counted."""
        limit = source + self.extra_tokens if self.max_length is None else self.max_length
        return max(limit, self.min_length, prefix)


def penalty(length: int, power: float) -> float:
    """Return the length penalty of Wu et al. (2016); the length counts the end."""
    return float(((5 + length) / 6) ** power)
