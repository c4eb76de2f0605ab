"""Which moving documents can matter, at which angles."""
