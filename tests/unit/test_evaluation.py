"""Scores by hand, and as sacreBLEU has them."""

import json
import logging
import shutil
import subprocess
from collections.abc import Callable

import pytest
from messages import raises
from sacrebleu.metrics.bleu import BLEU

from edgewise.data.grammar import pairs
from edgewise.errors import ArgumentError
from edgewise.evaluation import (
    Score,
    bleu,
    chrf,
    compound_bleu,
    evaluate,
    split_compounds,
    table,
    tokenised_bleu,
)

CAT, MAT = ["The cat sat on the mat"], ["The cat sat on a mat"]


def root(*precisions: float) -> float:
    """100 times the geometric mean of four."""
    first, second, third, fourth = precisions
    return 100 * float(first * second * third * fourth) ** 0.25


def test_bleu_by_hand() -> None:
    score = bleu(CAT, MAT)
    # "the" matches nothing; 3 of 5 pairs, 2 of 4 triples and 1 of 3 fours match.
    assert score.value == pytest.approx(root(5 / 6, 3 / 5, 2 / 4, 1 / 3))
    assert score.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert str(score) == f"53.7 ({score.signature})"


def test_chrf_by_hand() -> None:
    score = chrf(["abc"], ["abd"])
    # 2 of 3 letters, 1 of 2 pairs and no triple match; precision and recall are the same.
    assert score.value == pytest.approx(100 * (2 / 3 + 1 / 2 + 0) / 3)
    assert score.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:")


def test_tokenised_lowercased_bleu_ignores_case_alone() -> None:
    shouted = ["THE CAT SAT ON THE MAT!"]
    score = tokenised_bleu(shouted, [f"{MAT[0]}!"])
    assert score.value == bleu([f"{CAT[0].lower()}!"], [f"{MAT[0].lower()}!"]).value
    assert bleu(shouted, [f"{MAT[0]}!"]).value < score.value
    assert "|case:lc|eff:no|tok:13a|" in score.signature


def test_text_that_is_tokenised_is_not_tokenised_again() -> None:
    translation, reference = ["one 3/4 of 5 %"], ["One 3/4 of 5 $"]
    # one, 3/4, of, 5, %: without the last one, 4 of 5, 3 of 4, 2 of 3 and 1 of 2 match.
    score = tokenised_bleu(translation, reference, tokenised=True)
    assert score.value == pytest.approx(root(4 / 5, 3 / 4, 2 / 3, 1 / 2))
    assert "|case:lc|eff:no|tok:none|" in score.signature
    # one, 3, /, 4, of, 5, %: two tokens more.
    score = tokenised_bleu(translation, reference)
    assert score.value == pytest.approx(root(6 / 7, 5 / 6, 4 / 5, 3 / 4))


COMPOUNDS = {
    "rich-text": "rich ##AT##-##AT## text",
    "rich-text-format": "rich ##AT##-##AT## text ##AT##-##AT## format",
    # b was taken for the hyphen before it.
    "a-b-c": "a ##AT##-##AT## b-c",
    "a-b-c-d": "a ##AT##-##AT## b-c ##AT##-##AT## d",
    "a-bc-d": "a ##AT##-##AT## bc ##AT##-##AT## d",
    "a--b": "a ##AT##-##AT## -b",
    "a---b": "a ##AT##-##AT## --b",
    "ä-ö": "ä ##AT##-##AT## ö",
    "a\u00a0-b": "a\u00a0 ##AT##-##AT## b",
    "a - b": "a - b",
    "-a b-": "-a b-",
    "a\u2013b": "a\u2013b",
    "": "",
}


@pytest.mark.parametrize(("text", "split"), COMPOUNDS.items())
def test_compounds_are_split_at_hyphens_from_left_to_right(text: str, split: str) -> None:
    assert split_compounds(text) == split


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_perl_splits_compounds_in_the_same_places() -> None:
    script = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    text = "".join(f"{line}\n" for line in COMPOUNDS)
    done = subprocess.run(
        ["perl", "-ple", script], input=text.encode(), capture_output=True, check=True
    )
    assert done.stdout.decode().split("\n")[:-1] == list(COMPOUNDS.values())


def test_compound_bleu_by_hand() -> None:
    score = compound_bleu(["a rich-text format"], ["one rich-text format"])
    # a rich ##AT##-##AT## text format: all but the first of 5 tokens.
    assert score.value == pytest.approx(root(4 / 5, 3 / 4, 2 / 3, 1 / 2))
    about = "|case:mixed|eff:no|tok:13a, compounds split as in tensor2tensor|smooth:none|"
    assert about in score.signature


def test_compound_bleu_is_not_smoothed() -> None:
    translation, reference = ["a b c x e f"], ["a b c d e f"]
    assert bleu(translation, reference).value > 0
    assert compound_bleu(translation, reference).value == 0


def test_compounds_are_split_after_tokens() -> None:
    # 13a makes "2 - to" of the one and "##AT##-##AT##" of neither.
    assert compound_bleu(["in 2-to a b c"], ["in 2 - to a b c"]).value == pytest.approx(100)
    tokenised = compound_bleu(["in 2-to a b c"], ["in 2 - to a b c"], tokenised=True)
    assert tokenised.value < 100
    assert "tok:none, compounds split as in tensor2tensor|" in tokenised.signature


def test_tokenised_text_brings_no_warning_of_sacrebleus(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [f"sentence {i} has an end ." for i in range(150)]
    with caplog.at_level(logging.WARNING):
        report = evaluate(lines, lines, lines, against=lines)
    assert report.bleu.value == pytest.approx(100)
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("score", [bleu, chrf, tokenised_bleu, compound_bleu])
def test_counts_that_differ_are_refused_by_every_score(score: Callable[..., Score]) -> None:
    with raises(ArgumentError, "references", "translations", 3, 2):
        score(["a", "b", "c"], ["a", "b"])
    with raises(ArgumentError, "translations", "at least"):
        score([], [])
    with raises(ArgumentError, "references", "string"):
        score(["a", "b", "c"], "abc")


@pytest.mark.parametrize("name", ["translations", "references", "against"])
def test_a_report_needs_a_sentence_for_each_source(name: str) -> None:
    texts = {"translations": CAT * 3, "references": MAT * 3, "against": CAT * 3}
    with raises(ArgumentError, name, "sources", 3, 4):
        evaluate(CAT * 3, **texts | {name: CAT * 4})


def test_a_report_gathers_the_scores_and_is_the_same_each_time() -> None:
    sources, references = (list(side) for side in zip(*pairs(40, seed=1), strict=True))
    translations = [line.replace("e", "E", 1) for line in references]
    report = evaluate(sources, translations, references, against=references)
    assert report.sentences == 40
    assert report.bleu == bleu(translations, references)
    assert report.chrf == chrf(translations, references)
    assert report.tokenised_lowercased_bleu.value == pytest.approx(100)
    assert report.compound_split_bleu == compound_bleu(translations, references)
    assert sum(bucket.sentences for bucket in report.by_source_length) == 40
    assert report.interval is not None
    assert report.interval[0] < report.bleu.value < report.interval[1]
    assert report.comparison is not None
    assert report.comparison.bleu.value == report.bleu.value
    assert report.comparison.against.value == pytest.approx(100)
    assert report == evaluate(sources, translations, references, against=references)


def test_a_report_without_another_system_compares_nothing() -> None:
    report = evaluate(CAT, CAT, MAT)
    assert report.comparison is None
    assert (report.bleu.value, report.interval) == (BLEU().corpus_score(CAT, [MAT]).score, None)


def test_a_report_of_tokenised_text_takes_its_tokens_for_older_papers_alone() -> None:
    report = evaluate(CAT, CAT, MAT, tokenised=True)
    assert "tok:none|" in report.tokenised_lowercased_bleu.signature
    assert "tok:none, compounds" in report.compound_split_bleu.signature
    assert report.bleu == bleu(CAT, MAT)


def test_a_report_is_json() -> None:
    content = evaluate(CAT * 2, CAT * 2, MAT * 2, against=MAT * 2).as_dict()
    back = json.loads(json.dumps(content, allow_nan=False))
    assert back["sentences"] == 2
    assert back["bleu"] == {
        "value": content["bleu"]["value"],
        "signature": bleu(CAT, MAT).signature,
    }
    assert [bucket["sentences"] for bucket in back["by_source_length"]] == [2]
    assert back["comparison"]["difference"] < 0


def test_a_table_has_each_score_above_its_signature() -> None:
    report = evaluate([*CAT, ""], CAT * 2, MAT * 2, against=MAT * 2)
    rows = table(report, "ours", "theirs").splitlines()
    for score in (
        report.bleu,
        report.chrf,
        report.tokenised_lowercased_bleu,
        report.compound_split_bleu,
    ):
        at = rows.index(f"        {score.signature}")
        assert rows[at - 1].startswith(f"{score.value:6.2f}  ")
    bootstrap = report.by_source_length[0].bleu.signature
    assert [row.split() for row in rows if row.startswith(("0 ", "1-10 ", "all "))] == [
        ["0", "1", "53.73", "-"],
        ["1-10", "1", "53.73", "-"],
        ["all", "2", "53.73", "53.73", "to", "53.73"],
    ]
    assert rows[-5:] == [
        "",
        " 53.73  BLEU of ours",
        "100.00  BLEU of theirs",
        "-46.27  difference, 95 % interval -46.27 to -46.27, p = 0.0010 by paired bootstrap",
        bootstrap,
    ]
    assert rows.count(bootstrap) == 2
