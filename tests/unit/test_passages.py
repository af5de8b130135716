"""Texts as sentences: nothing between them is lost, and no text takes long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.server.markup import texts_between_tags
from edgewise.server.passages import Passages, split

ANY = st.text(alphabet=st.sampled_from("aB.!?… \n\t\"'”«()Äß。9<>&#;/x"), max_size=60)


def sentences(text: str) -> list[str]:
    return [sentence for _, sentence in split(text) if sentence]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The dog sleeps. The cat is awake!", ["The dog sleeps.", "The cat is awake!"]),
        ("Really? Yes… Ärger.", ["Really?", "Yes…", "Ärger."]),
        ("one line\nanother line", ["one line", "another line"]),
        ("He said “No.” Then he left.", ["He said “No.”", "Then he left."]),
        ("Dr. Who met Mr. Smith. J. Bach too.", ["Dr. Who met Mr. Smith.", "J. Bach too."]),
        ("Es war am 3. Mai. Gut, z.B. Brot.", ["Es war am 3. Mai.", "Gut, z.B. Brot."]),
        ("It was in 1990. Then it ended.", ["It was in 1990.", "Then it ended."]),
        ("version 2.5 and e.g. this. no end", ["version 2.5 and e.g. this. no end"]),
        ("他来了。她走了！", ["他来了。", "她走了！"]),
        ("Привет. Как дела?", ["Привет.", "Как дела?"]),
        ("Wait!!! What?! No.", ["Wait!!!", "What?!", "No."]),
        ("", []),
        (" \n\t ", []),
    ],
)
def test_sentences_are_found(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(ANY)
def test_the_parts_are_the_text(text: str) -> None:
    parts = split(text)
    assert "".join(space + sentence for space, sentence in parts) == text
    assert all(not space.strip() for space, _ in parts)
    assert all(sentence and sentence == sentence.strip() for _, sentence in parts[:-1])


@given(st.lists(ANY, max_size=4))
def test_texts_with_each_sentence_in_its_own_place_are_the_texts(texts: list[str]) -> None:
    passages = Passages.of(texts)
    assert passages.joined([sentence.source for sentence in passages.sentences]) == texts


@given(ANY)
def test_translations_stand_where_their_sentences_stood(text: str) -> None:
    passages = Passages.of(["One. Two.", text])
    translated = passages.joined([f"<{i}>" for i in range(len(passages.sentences))])
    assert translated[0] == "<0> <1>"
    assert translated[1].count("\n") == text.count("\n")


def test_tags_stay_and_the_text_between_them_is_translated() -> None:
    markup = '<p class="a > b">The <b>dog</b> sleeps. Fish &amp; chips.</p><!-- no. No --> End'
    passages = Passages.of([markup], markup=True)
    assert [s.source for s in passages.sentences] == [
        *("The", "dog", "sleeps.", "Fish & chips.", "End")
    ]
    assert passages.joined(["Der", "Hund", "<x>", "a & b", "c"]) == [
        '<p class="a > b">Der <b>Hund</b> &lt;x&gt; a &amp; b</p><!-- no. No --> c'
    ]


@pytest.mark.parametrize(
    "markup",
    [
        "<script>let a = 1 < 2; // One. Two</script>",
        "<STYLE>p > a { color: red }</STYLE>",
        "<pre>One. <b>Two</b></pre>",
        '<span translate="no">Edge. <i>Wise</i> too</span>',
        "<svg><text>One</text></svg>",
        "<pre>" + "<b>" * 50 + "One" + "</i>" * 50 + "two</pre>",
        "<script>never closed. Never",
        "<!-- never closed. Never",
        "<!DOCTYPE html><br><img alt=x>",
    ],
)
def test_what_is_no_text_for_readers_stays(markup: str) -> None:
    assert Passages.of([markup], markup=True).sentences == []
    assert Passages.of([markup], markup=True).joined([]) == [markup]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a < b", "a < b"),
        ("<p", "<p"),
        ("<3 x", "<3 x"),
        ("&#65;&#x42;&#" + "9" * 5000 + ";", "AB\ufffd"),
    ],
)
def test_what_is_no_tag_is_text(markup: str, text: str) -> None:
    assert texts_between_tags(markup) == [(text, True)]


@given(ANY)
def test_no_script_can_come_from_text(text: str) -> None:
    passages = Passages.of(["<p>x</p>"], markup=True)
    inner = passages.joined([text])[0].removeprefix("<p>").removesuffix("</p>")
    assert "<" not in inner and ">" not in inner


@given(ANY)
def test_parts_of_markup_are_the_markup(markup: str) -> None:
    """Tags to the letter; text but for how it is written."""
    passages = Passages.of([markup], markup=True)
    again = passages.joined([sentence.source for sentence in passages.sentences])[0]
    tags = [part for part, is_text in texts_between_tags(markup) if not is_text]
    assert [part for part, is_text in texts_between_tags(again) if not is_text] == tags
