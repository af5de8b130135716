"""A model folder as two ONNX graphs: `encoder.onnx`, and `decoder.onnx`, a step with its cache."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edgewise.checkpoint.model_folder import load_model
from edgewise.errors import EdgewiseError
from edgewise.interop.exported import write_exported
from edgewise.interop.onnx_graph import DecoderGraph, EncoderGraph
from edgewise.model.transformer import Transformer
from edgewise.storage import new_folder, require_free_folder, seal, utf8_path

KIND, VERSION = "ONNX model", 1
OPSET = 18
# A file of ONNX is at most two gigabytes: larger weights stand in a file beside it.
LARGEST = 1_500_000_000
# Of the example that is traced: all above 1 and no two alike, else a size would be taken for fixed.
BATCH, SLOTS, ROWS, SOURCE, PAST = 3, 2, 5, 7, 4


def export(folder: Path, out: Path, *, overwrite: bool = False) -> None:
    """Write a model folder's model as ONNX graphs in float32, with its tokenizer and card."""
    require_free_folder(out, KIND, overwrite=overwrite)
    for name in ("onnx", "onnxscript"):
        if find_spec(name) is None:
            raise EdgewiseError(f"this export needs {name}: pip install 'edgewise[export]'")
    model, vocabulary = load_model(folder)
    with new_folder(out) as new:
        for name, graph, arguments, shapes, outputs in (
            ("encoder", EncoderGraph(model), *_encoder_example(model)),
            ("decoder", DecoderGraph(model), *_decoder_example(model)),
        ):
            with utf8_path(new) as written:
                _write(graph, arguments, shapes, outputs, Path(written, f"{name}.onnx"))
        write_exported(new, folder, model, vocabulary, engine="onnx", numbers="float32")
        seal(new, KIND, VERSION)


def layer_names(model_layers: int, kind: str) -> list[str]:
    """Names of keys and values of each decoder layer."""
    return [f"{kind}_{what}_{i}" for i in range(model_layers) for what in ("keys", "values")]


def _encoder_example(model: Transformer) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    arguments = {"source": torch.ones(BATCH, SOURCE, dtype=torch.int64)}
    memory = layer_names(len(model.decoder), "memory")
    return arguments, {"source": {0: "batch", 1: "n_source"}}, ["mask", *memory]


def _decoder_example(model: Transformer) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    layers, heads = len(model.decoder), model.settings.heads
    d_head = model.settings.d_model // heads
    hypotheses = {0: "batch", 1: "slots"}
    arguments = {
        "tokens": torch.ones(BATCH, SLOTS, dtype=torch.int64),
        "parents": torch.zeros(BATCH, SLOTS, dtype=torch.int64),
        "mask": torch.ones(BATCH, SOURCE, dtype=torch.bool),
        "memory": [torch.zeros(BATCH, heads, SOURCE, d_head) for _ in range(2 * layers)],
        "past": [torch.zeros(ROWS, heads, PAST, d_head) for _ in range(2 * layers)],
    }
    shapes = {
        "tokens": hypotheses,
        "parents": hypotheses,
        "mask": {0: "batch", 1: "n_source"},
        "memory": [{0: "batch", 2: "n_source"}] * (2 * layers),
        "past": [{0: "rows", 2: "n_past"}] * (2 * layers),
    }
    outputs = ["log_probabilities", "attention", *layer_names(layers, "present")]
    return arguments, shapes, outputs


def _write(
    graph: nn.Module,
    arguments: dict[str, Any],
    shapes: dict[str, Any],
    outputs: list[str],
    path: Path,
) -> None:
    names = []
    for name, value in arguments.items():
        names += layer_names(len(value) // 2, name) if isinstance(value, list) else [name]
    size = sum(parameter.numel() * 4 for parameter in graph.parameters())
    with _quietly(), torch.no_grad():
        torch.onnx.export(
            graph.eval(),
            (),
            path,
            kwargs=arguments,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=names,
            output_names=outputs,
            opset_version=OPSET,
            external_data=size > LARGEST,
            verbose=False,
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks on itself."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
