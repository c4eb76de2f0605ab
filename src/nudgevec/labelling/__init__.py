"""Where labels come from: a log of clicks and votes, and language models."""
