"""Sources of labels: a log of clicks, votes and judgements, and queries written by language models."""
