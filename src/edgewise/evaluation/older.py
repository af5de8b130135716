"""BLEU as older papers computed it: on tokenised text. Only for comparison with these."""

import re
from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU

from edgewise.evaluation.bleu import Score, corpus_score, require_same_count

# ASCII: the script of tensor2tensor's read bytes, for which a no-break space is no space.
_HYPHEN = re.compile(r"(\S)-(\S)", re.ASCII)


def tokenised_bleu(
    translations: Sequence[str], references: Sequence[str], *, tokenised: bool = False
) -> Score:
    """BLEU of lowercased tokens: by the rules of 13a, or as they are if the text is tokenised."""
    metric = BLEU(lowercase=True, tokenize="none" if tokenised else "13a", force=True)
    return corpus_score(metric, translations, references)


def compound_bleu(
    translations: Sequence[str], references: Sequence[str], *, tokenised: bool = False
) -> Score:
    """BLEU after the splitting of tokens at hyphens, as in tensor2tensor's figures for German.

    Cased and without smoothing; its tokens were those of Moses, ours are those of 13a.
    """
    require_same_count(translations=translations, references=references)
    tokenise = str if tokenised else BLEU(tokenize="13a").tokenizer
    split = [[split_compounds(tokenise(s)) for s in side] for side in (translations, references)]
    score = corpus_score(BLEU(tokenize="none", smooth_method="none", force=True), *split)
    tokens = "none" if tokenised else "13a"
    about = f"tok:{tokens}, compounds split as in tensor2tensor"
    return Score(score.value, score.signature.replace("tok:none", about))


def split_compounds(text: str) -> str:
    """`rich-text` to `rich ##AT##-##AT## text`, but `a-b-c` to `a ##AT##-##AT## b-c`.

    From left to right, and the letter after a hyphen is not looked at again for the next one.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", text)
