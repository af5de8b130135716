"""The model: its size, what it computes, its positions, its initial values."""

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from edgewise import RelationAttention, RelativePositions, relation_attention
from edgewise.model.dropout import Dropout
from edgewise.model.initial import initialise
from edgewise.model.layers import FeedForward, Residual
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer, parameter_shapes, sinusoids

VOCABULARY = 17
ABSOLUTE = {"max_distance": None, "sinusoids": True}
POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoids": ABSOLUTE,
    "a table for each head": {"tables": "head"},
    "a table for each layer": {"tables": "layer"},
    "a table for all layers": {"tables": "shared"},
    "keys only": {"on_values": False},
    "values only": {"on_keys": False},
    "relative and sinusoids": {"sinusoids": True},
    "one label": {"max_distance": 0},
    "none": {"max_distance": None},
}
WITHOUT_ORDER = ("one label", "none")


pytestmark = pytest.mark.usefixtures("one_thread")


def settings_of(**changes: Any) -> ModelSettings:
    small = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 12, "heads": 3, "d_ff": 20}
    return ModelSettings(**{**small, "dropout": 0.0, "max_distance": 2, **changes})


def model_of(seed: int = 1, **changes: Any) -> Transformer:
    """A small model in double precision, with tables and biases that would be seen."""
    model = Transformer(settings_of(**changes), VOCABULARY)
    initialise(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(torch.rand(parameter.shape, generator=generator))
    return model.double().eval()


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(4, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def padding(batch: int, n: int) -> Tensor:
    """True = token; row i has i tokens less than the longest."""
    return torch.arange(n) < n - torch.arange(batch)[:, None]


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Size.


@pytest.mark.parametrize("name", ["base", "big"])
@pytest.mark.parametrize("positions", ["absolute", "relative"])
def test_the_papers_models_have_as_many_parameters_as_its_formulas_say(
    name: str, positions: str
) -> None:
    pieces, layers = 32_768, 6
    d, d_ff, heads, k = (512, 1024, 8, 16) if name == "base" else (1024, 4096, 16, 8)
    tables = {"max_distance": k, "tables": "head" if name == "base" else "layer"}
    sizes = {"d_model": d, "heads": heads, "d_ff": d_ff}
    settings = ModelSettings(**sizes, **(tables if positions == "relative" else ABSOLUTE))

    attention = 4 * d * d  # query, key, value, output; no biases
    feed_forward = (d * d_ff + d_ff) + (d_ff * d + d)
    norm = 2 * d
    encoder = layers * (attention + feed_forward + 2 * norm)
    decoder = layers * (2 * attention + feed_forward + 3 * norm)
    expected = pieces * d + encoder + decoder  # one matrix for source, target and output
    if positions == "relative":
        table = (2 * k + 1) * (d // heads)
        of_layer = heads if name == "base" else 1  # unique per layer and head, or per layer
        expected += 2 * (layers + layers) * of_layer * table  # a^K and a^V

    with torch.device("meta"):
        model = Transformer(settings, pieces)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


# What is computed.


def pytorch_layers(model: Transformer) -> tuple[list[nn.Module], list[nn.Module]]:
    """PyTorch's own layers with the weights of the model's."""
    s = model.settings
    activation = {"relu": "relu", "swish": nn.functional.silu, "gelu": "gelu"}[s.activation]
    options = {"dropout": 0.0, "batch_first": True, "norm_first": s.norm == "pre"}
    options |= {"activation": activation, "layer_norm_eps": s.norm_epsilon}
    sizes = (s.d_model, s.heads, s.d_ff)

    def copy(pairs: list[tuple[nn.Module, nn.Module]]) -> None:
        for ours, theirs in pairs:
            theirs.load_state_dict(ours.state_dict())

    def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
        projections = [ours.query.weight, ours.key.weight, ours.value.weight]
        theirs.in_proj_weight.copy_(torch.cat(projections))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.in_proj_bias.zero_()
        theirs.out_proj.bias.zero_()
        if s.bias:
            biases = [ours.query.bias, ours.key.bias, ours.value.bias]
            theirs.in_proj_bias.copy_(torch.cat(biases))
            theirs.out_proj.bias.copy_(ours.output.bias)

    encoder, decoder = [], []
    with torch.no_grad():
        for layer in model.encoder:
            theirs = nn.TransformerEncoderLayer(*sizes, **options).double()
            copy_attention(layer.attention, theirs.self_attn)
            copy([(layer.feed_forward.inner, theirs.linear1)])
            copy([(layer.feed_forward.outer, theirs.linear2)])
            copy([(layer.around_attention.norm, theirs.norm1)])
            copy([(layer.around_feed_forward.norm, theirs.norm2)])
            encoder.append(theirs)
        for layer in model.decoder:
            theirs = nn.TransformerDecoderLayer(*sizes, **options).double()
            copy_attention(layer.attention, theirs.self_attn)
            copy_attention(layer.cross, theirs.multihead_attn)
            copy([(layer.feed_forward.inner, theirs.linear1)])
            copy([(layer.feed_forward.outer, theirs.linear2)])
            copy([(layer.around_attention.norm, theirs.norm1)])
            copy([(layer.around_cross.norm, theirs.norm2)])
            copy([(layer.around_feed_forward.norm, theirs.norm3)])
            decoder.append(theirs)
    return encoder, decoder


OTHERS = {  # what models of other toolkits have
    "as in the paper": {},
    "biases": {"bias": True},
    "swish": {"activation": "swish"},
    "gelu": {"activation": "gelu"},
    "three matrices": {"share_embeddings": False, "bias": True},
    "epsilon": {"norm_epsilon": 1e-3},
}


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_with_absolute_positions_it_is_pytorch_s_transformer(norm: str, others: str) -> None:
    model = model_of(**ABSOLUTE, norm=norm, **OTHERS[others])
    source, target, mask = tokens(3, 7), tokens(3, 5, seed=1), padding(3, 7)
    encoder, decoder = pytorch_layers(model)

    def embedded(sequence: Tensor, embedding: nn.Embedding) -> Tensor:
        rows = embedding.weight[sequence] * math.sqrt(12)
        return rows + sinusoids(sequence.shape[1], 12, torch.device("cpu")).double()

    def last(x: Tensor, norm_of: nn.Module) -> Tensor:
        if norm == "post":
            return x
        epsilon = model.settings.norm_epsilon
        return nn.functional.layer_norm(x, (12,), norm_of.weight, norm_of.bias, epsilon)

    memory = embedded(source, model.embedding)
    for layer in encoder:
        memory = layer(memory, src_key_padding_mask=~mask)
    memory = last(memory, model.encoder_norm)
    x = embedded(target, model.target_embedding)
    causal = nn.Transformer.generate_square_subsequent_mask(5).double()
    for layer in decoder:
        x = layer(x, memory, tgt_mask=causal, memory_key_padding_mask=~mask)
    x = last(x, model.decoder_norm)
    expected = x @ model.output_embedding.weight.T
    assert_equal(
        model(source, mask, target), expected + (model.output_bias if model.settings.bias else 0)
    )
    matrices = {model.embedding, model.target_embedding, model.output_embedding}
    assert len(matrices) == (1 if model.settings.share_embeddings else 3)


@pytest.mark.parametrize("positions", POSITIONS)
def test_self_attention_is_the_definition_s_in_every_layer(positions: str) -> None:
    model, mask = model_of(**POSITIONS[positions]), padding(3, 7)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    attentions = {n: m for n, m in model.named_modules() if isinstance(m, RelationAttention)}
    for name, module in attentions.items():
        module.register_forward_hook(
            lambda m, args, output, name=name: seen.update({name: (args[0], output.clone())})
        )
    model(tokens(3, 7), mask, tokens(3, 5, seed=1))
    assert sorted(seen) == sorted(
        [f"encoder.{i}.attention" for i in range(2)] + [f"decoder.{i}.attention" for i in range(3)]
    )
    for name, (x, output) in seen.items():
        layer = attentions[name]
        query, key, value = (
            linear(x, p.weight).unflatten(-1, (3, 4)).transpose(1, 2)
            for p in (layer.query, layer.key, layer.value)
        )
        distance = model.settings.max_distance
        expected = relation_attention(
            *(query, key, value, None if distance is None else RelativePositions(distance)),
            key_table=layer.key_table,
            value_table=layer.value_table,
            mask=mask[:, None, None, :] if name.startswith("encoder") else None,
            causal=name.startswith("decoder"),
            method="reference",
        )
        expected = linear(expected.transpose(1, 2).flatten(2), layer.output.weight)
        assert_equal(output, expected)


def test_sinusoids_are_those_computed_by_hand() -> None:
    # d_model = 4: angles p / 10000^(0/4) = p and p / 10000^(2/4) = p / 100.
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [0.8414709848, 0.5403023059, 0.0099998333, 0.9999500004],
        [0.9092974268, -0.4161468365, 0.0199986667, 0.9998000067],
    ]
    actual = sinusoids(3, 4, torch.device("cpu"))
    torch.testing.assert_close(actual, torch.tensor(expected), rtol=0, atol=1e-6)


# Positions.


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_the_encoder_sees_order_by_positions_only(positions: str, norm: str) -> None:
    model, source = model_of(**POSITIONS[positions], norm=norm), tokens(2, 7)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    straight, mixed = model.encode(source, None)[:, order], model.encode(source[:, order], None)
    if positions in WITHOUT_ORDER:
        assert_equal(mixed, straight)
    else:
        assert not torch.allclose(mixed, straight, atol=1e-3)


@pytest.mark.parametrize("positions", POSITIONS)
def test_positions_have_the_tables_they_need(positions: str) -> None:
    model = model_of(**POSITIONS[positions])
    tables = {name: p for name, p in model.named_parameters() if name.endswith("_table")}
    layers = {"a table for all layers": 2, "sinusoids": 0, "none": 0}.get(positions, 5)
    kinds = 1 if positions in ("keys only", "values only") else 2
    assert len(tables) == layers * kinds
    labels = 1 if positions == "one label" else 5
    shared = positions in ("a table for each layer", "a table for all layers")
    shapes = {tuple(table.shape) for table in tables.values()}
    assert shapes == ({((labels, 4) if shared else (3, labels, 4))} if tables else set())
    if kinds == 1:
        assert {name.rpartition(".")[2] for name in tables} == {f"{positions[:-6]}_table"}


def test_shared_tables_are_one_of_the_encoder_and_one_of_the_decoder() -> None:
    model = model_of(tables="shared")
    for kind in ("key_table", "value_table"):
        of_encoder = {id(getattr(layer.attention, kind)) for layer in model.encoder}
        of_decoder = {id(getattr(layer.attention, kind)) for layer in model.decoder}
        assert len(of_encoder) == len(of_decoder) == 1
        assert of_encoder != of_decoder
    names = [name for name, _ in model.named_parameters() if name.endswith("_table")]
    assert names == [
        f"{side}.0.attention.{kind}_table"
        for side in ("encoder", "decoder")
        for kind in ("key", "value")
    ]
    model(tokens(2, 7), None, tokens(2, 5)).square().sum().backward()
    for layer in model.encoder:
        assert layer.attention.key_table.grad.any()


@pytest.mark.parametrize("positions", POSITIONS)
def test_each_parameter_has_one_name_and_is_used(positions: str) -> None:
    model = model_of(**POSITIONS[positions])
    parameters = dict(model.named_parameters())
    assert len({id(parameter) for parameter in parameters.values()}) == len(parameters)
    model(tokens(2, 7), padding(2, 7), tokens(2, 5)).square().sum().backward()
    for name, parameter in parameters.items():
        if positions == "one label" and name.endswith("key_table"):
            continue  # it adds the same to all logits of a query
        assert parameter.grad is not None and parameter.grad.any(), name


# Causality and padding.


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_later_target_token_changes_no_earlier_logits(positions: str) -> None:
    model, source, target = model_of(**POSITIONS[positions]), tokens(2, 7), tokens(2, 5)
    before = model(source, None, target)
    for changed in range(5):
        other = target.clone()
        other[:, changed] = 4 + (other[:, changed] - 3) % (VOCABULARY - 4)
        after = model(source, None, other)
        assert_equal(after[:, :changed], before[:, :changed])
        assert not torch.allclose(after[:, changed], before[:, changed], atol=1e-3)


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_last_source_token_reaches_every_position(positions: str) -> None:
    model, source, target = model_of(**POSITIONS[positions]), tokens(1, 7), tokens(1, 5)
    other = source.clone()
    other[:, 6] = 4 + (other[:, 6] - 3) % (VOCABULARY - 4)
    difference = model(other, None, target) - model(source, None, target)
    assert (difference.abs().amax(-1) > 1e-4).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_padding_of_the_source_changes_nothing(positions: str, norm: str) -> None:
    model = model_of(**POSITIONS[positions], norm=norm)
    source, target, mask = tokens(3, 7), tokens(3, 5, seed=1), padding(3, 7)
    together = model(source.masked_fill(~mask, 0), mask, target)
    for row, n in enumerate((7, 6, 5)):
        alone = model(source[row : row + 1, :n], None, target[row : row + 1])
        assert_equal(together[row : row + 1], alone)


# Initial values.


def test_models_share_the_values_of_all_they_have_in_common() -> None:
    relative = Transformer(settings_of(), VOCABULARY)
    torch.manual_seed(99)
    absolute = Transformer(settings_of(**ABSOLUTE, decoder_layers=4, norm="pre"), VOCABULARY)
    larger = Transformer(settings_of(d_ff=28, tables="layer"), VOCABULARY)
    for model in (larger, relative, absolute):  # the order is nothing
        initialise(model, 5)
        torch.rand(3)
    ours = dict(relative.named_parameters())
    for other in (absolute, larger):
        common = {
            name: parameter
            for name, parameter in other.named_parameters()
            if name in ours and ours[name].shape == parameter.shape
        }
        assert len(common) > 30
        for name, parameter in common.items():
            assert torch.equal(parameter, ours[name]), name


def test_initial_values_depend_on_the_seed_and_not_on_the_global_generator() -> None:
    models = {}
    for name, seed, of_torch in (("first", 5, 1), ("same", 5, 2), ("other", 6, 1)):
        torch.manual_seed(of_torch)
        models[name] = Transformer(settings_of(), VOCABULARY)
        initialise(models[name], seed)
    state = torch.get_rng_state()
    initialise(models["first"], 5)
    assert torch.equal(torch.get_rng_state(), state)
    first, same, other = (dict(model.named_parameters()) for model in models.values())
    for name, parameter in first.items():
        assert torch.equal(parameter, same[name]), name
        constant = name.endswith("bias") or "norm" in name
        assert torch.equal(parameter, other[name]) == constant, name


def test_no_two_parameters_have_the_same_values() -> None:
    model = Transformer(settings_of(), VOCABULARY)
    initialise(model, 5)
    firsts = [
        parameter.flatten()[0].item()
        for name, parameter in model.named_parameters()
        if not (name.endswith("bias") or "norm" in name)
    ]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("tables", ["head", "layer", "shared"])
def test_tables_begin_within_their_bound_each_head_s_by_itself(tables: str) -> None:
    settings = settings_of(d_model=96, max_distance=16, tables=tables)
    model = Transformer(settings, VOCABULARY)
    initialise(model, 5)
    bound = math.sqrt(6 / ((2 * 16 + 1) + 32))  # not of all heads' labels together
    seen = 0
    for name, parameter in model.named_parameters():
        if name.endswith("_table"):
            seen += 1
            heads = parameter if parameter.dim() == 3 else parameter[None]
            for head in heads:
                assert 0.98 * bound < head.abs().max() <= bound
            assert tables != "head" or not torch.equal(heads[0], heads[1])
    assert seen == (4 if tables == "shared" else 10)


def test_matrices_norms_and_embeddings_begin_as_documented() -> None:
    model = Transformer(settings_of(d_model=96, d_ff=160), 1000)
    initialise(model, 5)
    for name, parameter in model.named_parameters():
        if name == "embedding.weight":
            assert abs(parameter.std().item() * math.sqrt(96) - 1) < 0.02
            assert abs(parameter.mean().item()) < 0.002
        elif name.endswith("bias"):
            assert not parameter.any()
        elif "norm" in name:
            assert (parameter == 1).all()
        elif not name.endswith("_table"):
            bound = math.sqrt(6 / sum(parameter.shape))
            assert 0.99 * bound < parameter.abs().max() <= bound, name


# Dropout.


def test_dropout_acts_in_training_only() -> None:
    source, target = tokens(2, 7), tokens(2, 5)
    model = model_of(dropout=0.3)
    assert torch.equal(model(source, None, target), model(source, None, target))
    expected = model_of()(source, None, target)
    assert torch.equal(model(source, None, target), expected)
    model.train()
    assert not torch.allclose(model(source, None, target), model(source, None, target))


def test_dropout_acts_on_embeddings_and_on_the_output_of_each_sublayer() -> None:
    model = model_of(dropout=0.3).train()
    seen: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            module.register_forward_hook(lambda m, x, y, name=name: seen.update({name: y == 0}))
    model(tokens(5, 7), None, tokens(5, 6))
    sublayers = [
        *(f"encoder.{i}.around_attention.dropout" for i in range(2)),
        *(f"encoder.{i}.around_feed_forward.dropout" for i in range(2)),
        *(f"decoder.{i}.around_attention.dropout" for i in range(3)),
        *(f"decoder.{i}.around_cross.dropout" for i in range(3)),
        *(f"decoder.{i}.around_feed_forward.dropout" for i in range(3)),
    ]
    assert sorted(seen) == sorted(["dropout", *sublayers])
    for name, dropped in seen.items():
        assert 0.2 < dropped.double().mean() < 0.4, name


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_of_sums_made_in_place_are_those_of_the_function(
    norm: str, dropout: float
) -> None:
    residual = Residual(settings_of(norm=norm, dropout=dropout)).double()
    layer = FeedForward(settings_of(d_ff=20)).double()

    def function(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        result: Tensor = residual(1 * x, layer)
        return result

    x = torch.randn(2, 3, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, x)
    with torch.no_grad():
        branch = residual.dropout.eval()(layer(residual.norm(x) if norm == "pre" else x))
        expected = x + branch if norm == "pre" else residual.norm(x + branch)
    residual.eval()
    assert_equal(function(x), expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_sums_are_not_rounded_to_the_precision_of_products_under_autocast(norm: str) -> None:
    residual, layer = Residual(settings_of(norm=norm)), FeedForward(settings_of(d_ff=20))
    x = torch.randn(2, 3, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = residual(x, layer)
        branch = layer(residual.norm(x) if norm == "pre" else x)
        expected = x + branch if norm == "pre" else residual.norm(x + branch)
    assert branch.dtype == torch.bfloat16
    assert result.dtype == torch.float32
    assert torch.equal(result, expected)


@pytest.mark.parametrize("part", ["attention", "cross"])
def test_attention_weights_have_a_dropout_of_their_own(part: str) -> None:
    x, memory = torch.rand(2, 5, 12).double(), torch.rand(2, 7, 12).double()

    def output(model: Transformer) -> Tensor:
        layer = model.decoder[1]
        result = layer.attention(x) if part == "attention" else layer.cross(x, memory, None)
        assert isinstance(result, Tensor)
        return result

    without = model_of(dropout=0.5).train()
    assert torch.equal(output(without), output(without))
    alone = model_of(attention_dropout=0.5).train()
    assert not torch.allclose(output(alone), output(alone))
    assert torch.equal(output(alone.eval()), output(without))


@pytest.mark.parametrize("positions", POSITIONS)
def test_the_shapes_of_parameters_are_known_before_they_are_allocated(positions: str) -> None:
    model = model_of(**POSITIONS[positions])
    expected = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert parameter_shapes(model.settings, VOCABULARY) == expected


def test_shapes_are_known_without_importing_the_compiler() -> None:
    code = (
        "import sys; from edgewise.model.settings import ModelSettings; "
        "from edgewise.model.transformer import parameter_shapes; "
        "parameter_shapes(ModelSettings(bias=True), 8); print('torch._dynamo' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "False", result.stderr
