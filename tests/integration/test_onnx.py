"""Exported graphs in ONNX Runtime: the model's numbers, for any kind of table, batch and length."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from messages import raises
from selection import long_except

from edgewise.checkpoint.model_folder import weights, write_model
from edgewise.data.grammar import pairs
from edgewise.data.vocabulary import Vocabulary
from edgewise.decoding import DecodingSettings
from edgewise.decoding.native import NativeEngine
from edgewise.errors import DataError, EdgewiseError
from edgewise.interop.onnx import KIND, VERSION, export
from edgewise.interop.onnx_engine import OnnxEngine, OnnxSteps
from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer
from edgewise.storage import MANIFEST, read_json, seal, write_json

TEXTS = [line for pair in pairs(200, 1) for line in pair]
SIZES = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 24, "heads": 3, "d_ff": 40}
MODES = {
    "a table for each head": {"max_distance": 3},
    "one label": {"max_distance": 0, "tables": "shared"},
    "both positions": {"max_distance": 4, "sinusoids": True, "tables": "layer", "on_values": False},
    "as other toolkits": {
        **{"max_distance": None, "sinusoids": True, "bias": True, "activation": "swish"},
        **{"share_embeddings": False, "source_end": False, "norm": "pre"},
    },
}
# torch.export sees the hook's checks of shapes as part of the model.
pytestmark = [pytest.mark.unhooked, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.train(TEXTS, 340)


# An export takes about ten seconds.
KINDS = long_except(["a table for each head"], MODES)


@pytest.fixture(scope="module", params=KINDS)
def engines(
    request: pytest.FixtureRequest,
    vocabulary: Vocabulary,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[NativeEngine, OnnxEngine, Path]:
    model = made(vocabulary, **MODES[request.param])
    folder = tmp_path_factory.mktemp("onnx")
    write_model(folder / "model", weights(model), model.settings, vocabulary, {})
    export(folder / "model", folder / "out")
    native = NativeEngine([model], vocabulary)
    return native, OnnxEngine.load([folder / "out"], threads=1), folder / "out"


def made(vocabulary: Vocabulary, **changes: Any) -> Transformer:
    model = Transformer(ModelSettings(**SIZES | changes), vocabulary.size)
    initialise(model, 3)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.output_embedding.weight.mul_(3)  # else all tokens are about as likely
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model.eval()


def test_search_scores_and_alignments_are_ours(
    engines: tuple[NativeEngine, OnnxEngine, Path], vocabulary: Vocabulary
) -> None:
    native, runtime, _ = engines
    # Alone, together, of one token and of many.
    sources = [*vocabulary.encode(TEXTS[:40:2]), [7], list(range(5, 100))]
    prefixes = [[9, 8]] + [[]] * (len(sources) - 1)
    settings = DecodingSettings(beam=3, n_best=2, extra_tokens=3)
    ours, theirs = (each.search(sources, prefixes, settings) for each in (native, runtime))
    for one, other in zip(ours, theirs, strict=True):
        assert [each.tokens for each in one] == [each.tokens for each in other]
        for left, right in zip(one, other, strict=True):
            assert right.log_probability == pytest.approx(left.log_probability, abs=1e-3)
    targets = [each[0].tokens for each in ours]
    assert runtime.score(sources, targets) == pytest.approx(
        native.score(sources, targets), abs=1e-3
    )
    for one, other in zip(
        native.align(sources, targets), runtime.align(sources, targets), strict=True
    ):
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_prefixes_and_alternatives_are_ours(
    engines: tuple[NativeEngine, OnnxEngine, Path], vocabulary: Vocabulary
) -> None:
    native, runtime, _ = engines
    sources, prefixes = vocabulary.encode(TEXTS[:3]), [[9, 8, 30], [40, 41, 42], [12] * 7]
    for changes in ({}, {"alternatives": True}, {"sample": True, "top_k": 3}):
        settings = DecodingSettings(beam=3, n_best=3, extra_tokens=3, **changes)
        ours, theirs = (each.search(sources, prefixes, settings) for each in (native, runtime))
        for one, other in zip(ours, theirs, strict=True):
            assert [each.tokens for each in one] == [each.tokens for each in other]
            for left, right in zip(one, other, strict=True):
                assert right.log_probability == pytest.approx(left.log_probability, abs=1e-3)


def test_one_sentence_of_one_hypothesis_is_a_size_too(
    engines: tuple[NativeEngine, OnnxEngine, Path],
) -> None:
    native, runtime, _ = engines
    greedy = DecodingSettings(beam=1, max_length=1)
    for source in ([7], [8, 9]):
        (ours,), (theirs,) = (each.search([source], [[]], greedy) for each in (native, runtime))
        assert theirs[0].tokens == ours[0].tokens


def test_failures_of_the_runtime_are_told(
    engines: tuple[NativeEngine, OnnxEngine, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, runtime, out = engines
    steps = OnnxSteps(runtime.models[0], [[7]], 1)
    with raises(EdgewiseError, "ONNX Runtime", "batch_tokens"):
        steps(torch.tensor([[10_000_000]]), None)
    # A folder whose settings are those of another model.
    folder = tmp_path / "copy"
    shutil.copytree(out, folder)
    config = read_json(folder / "config.json")
    config["architecture"]["decoder_layers"] = 5
    write_json(folder / "config.json", config)
    (folder / MANIFEST).unlink()
    seal(folder, KIND, VERSION)
    with raises(DataError, folder, "decoder.onnx", "layers", "config.json"):
        OnnxEngine.load([folder])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with raises(EdgewiseError, "onnxruntime", "edgewise[export]"):
        OnnxEngine.load([out])


@pytest.mark.long
def test_large_weights_stand_in_files_of_their_own(
    vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgewise.interop.onnx.LARGEST", 0)
    model = made(vocabulary, decoder_layers=1)
    write_model(tmp_path / "model", weights(model), model.settings, vocabulary, {})
    export(tmp_path / "model", tmp_path / "out")
    assert (tmp_path / "out" / "decoder.onnx.data").stat().st_size > 10_000
    assert "decoder.onnx.data" in read_json(tmp_path / "out" / MANIFEST)["files"]
    (found,) = OnnxEngine.load([tmp_path / "out"], threads=1).score([[7, 8]], [[9]])
    assert found == pytest.approx(NativeEngine([model], vocabulary).score([[7, 8]], [[9]])[0], 1e-4)


def test_no_size_of_the_example_is_fixed(engines: tuple[NativeEngine, OnnxEngine, Path]) -> None:
    folder = engines[2]
    fixed = {"heads": 3, "d_head": 8}
    for name in ("encoder", "decoder"):
        model = onnx.load(folder / f"{name}.onnx")
        onnx.checker.check_model(model)
        for value in [*model.graph.input, *model.graph.output]:
            sizes = [
                each.dim_value for each in value.type.tensor_type.shape.dim if not each.dim_param
            ]
            assert sizes in ([], [*fixed.values()], [engines[0].vocabulary.size]), value.name
