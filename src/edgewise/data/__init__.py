"""Text to batches: files, vocabulary, prepared corpora, batches."""
