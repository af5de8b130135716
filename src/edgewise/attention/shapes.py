"""Shapes that signatures share."""

from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

Queries = Float[Tensor, "batch head n_query d_head"]
Keys = Float[Tensor, "batch head n_key d_head"]
EdgeMatrix = Float[Tensor, "batch head n_query n_key"]  # a number for every query and key
Table = Float[Tensor, "*_head _n_label d_head"]  # sizes of two tables may differ
Mask = Bool[Tensor, "#batch #head #n_query #n_key"]  # True = may attend to
Labels = Int[Tensor, "*batch n_query n_key"]
EdgeIndex = Int64[Tensor, " edge"]
EdgeVectorTensor = Float[Tensor, "#batch #head n_query n_key d_head"]
