"""Small models of every kind, for tests of the decoder step by step."""

import torch

from edgewise.model.initial import initialise
from edgewise.model.settings import ModelSettings
from edgewise.model.transformer import Transformer

VOCABULARY = 53
SIZES = {"encoder_layers": 2, "decoder_layers": 3, "d_model": 24, "heads": 3, "d_ff": 40}
MODES = {
    "per head": {"max_distance": 4},
    "per layer": {"max_distance": 4, "tables": "layer"},
    "shared": {"max_distance": 4, "tables": "shared"},
    "keys only": {"max_distance": 3, "on_values": False},
    "values only": {"max_distance": 3, "on_keys": False},
    "one label": {"max_distance": 0},
    "distance 1": {"max_distance": 1},
    "distance beyond all": {"max_distance": 60},
    "sinusoids": {"max_distance": None, "sinusoids": True},
    "both": {"max_distance": 4, "sinusoids": True},
    "none": {"max_distance": None},
    "norm before": {"max_distance": 4, "norm": "pre"},
    "biases": {"max_distance": 4, "bias": True},
    "as other toolkits": {
        "max_distance": None,
        "sinusoids": True,
        "bias": True,
        "activation": "swish",
        "share_embeddings": False,
        "norm_epsilon": 1e-3,
    },
    "gelu": {"max_distance": 4, "norm": "pre", "activation": "gelu"},
}


def made(seed: int = 1, vocabulary: int = VOCABULARY, **changes: object) -> Transformer:
    """A model of random weights."""
    model = Transformer(ModelSettings(**SIZES | {"dropout": 0.3} | changes), vocabulary)
    initialise(model, seed)
    with torch.no_grad():  # norms and biases that are not those of the start
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                generator = torch.Generator().manual_seed(len(name))
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()
