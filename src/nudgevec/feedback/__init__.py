"""Where labels come from: a log of clicks and votes, and queries written by language models."""
