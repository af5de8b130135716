"""Alignments by attention: which words, and the weights that the model itself used."""

import numpy as np
import pytest
import torch

from edgewise.attention import relation_attention
from edgewise.data.vocabulary import END
from edgewise.decoding.alignment import attention_to_source, word_links, word_numbers
from edgewise.decoding.translator import Translation
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer


def test_words_begin_where_a_piece_begins_with_a_space():
    assert word_numbers(["▁An", "▁un", "usual", "▁word", "."]) == [0, 1, 1, 2, 2]


def test_text_that_begins_within_a_word_has_that_word_first():
    assert word_numbers(["un", "usual", "▁word"]) == [0, 0, 1]


def test_spaces_belong_to_the_next_word_and_the_last_to_the_last():
    assert word_numbers(["▁", "▁", "▁a", "▁", "▁b", "▁", "▁"]) == [0, 0, 0, 1, 1, 1, 1]
    assert word_numbers(["▁", "▁"]) == []
    assert word_numbers([]) == []


def test_a_word_is_linked_to_that_which_its_pieces_attend_to_most():
    # Rows are target pieces; the two pieces of the second source word count together.
    weights = np.array([[0.4, 0.3, 0.3], [0.9, 0.1, 0.0], [0.0, 0.45, 0.55]], dtype=np.float32)
    assert word_links(weights, ["▁a", "▁b", "c"], ["▁X", "▁Y", "▁Z"]) == [(1, 0), (0, 1), (1, 2)]
    assert word_links(weights[:, :0], [], ["▁X"]) == []
    assert Translation("X", 0.0, 0.0, (), ((1, 0), (0, 1))).pharaoh == "1-0 0-1"


@pytest.mark.parametrize("layers", [1, 3])
def test_the_weights_are_those_of_the_last_layer_but_one(layers):
    settings = ModelSettings(
        encoder_layers=2, decoder_layers=layers, d_model=24, heads=3, d_ff=40, max_distance=4
    )
    model = Transformer(settings, 31)
    initialise(model, 1)
    model.eval()
    source = torch.tensor([[7, 8, 9, END, 0], [5, 6, 11, 12, END]])
    target = torch.tensor([[15, 16, END], [17, END, 0]])
    seen = {}
    cross = model.decoder[max(0, layers - 2)].cross
    cross.register_forward_hook(lambda m, a, out: seen.update(x=a[0], memory=a[1], out=out))
    with torch.inference_mode():
        weights = attention_to_source(model, source, target)
        model.states(source, source != 0, torch.tensor([[1, 15, 16], [1, 17, END]]))
        assert weights.shape == (2, 3, 5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
        assert (weights[0, :, 4] == 0).all()
        # With every head's values the one-hot of the position, the output is the weights.
        query, key = (
            x.unflatten(-1, (3, -1)).transpose(1, 2)
            for x in (cross.query(seen["x"]), cross.key(seen["memory"]))
        )
        one_hot = torch.eye(5, 8).expand(2, 3, 5, 8)
        mask = (source != 0)[:, None, None, :]
        expected = relation_attention(query, key, one_hot, None, mask=mask)[..., :5].mean(1)
        torch.testing.assert_close(weights, expected)
