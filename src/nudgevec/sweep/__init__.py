"""From what can matter to the exact curve of a metric, and the choice of a step."""
