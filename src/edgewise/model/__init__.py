"""The paper's encoder and decoder."""
