"""Beyond the paper, kinship graphs: what edge vectors in keys and values do on another task."""
