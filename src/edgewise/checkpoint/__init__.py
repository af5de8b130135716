"""Models and training states on disk: data, never code."""
