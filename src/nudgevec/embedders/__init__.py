"""Text to vectors. Each embedder is one module and one optional dependency."""
