"""Exercise checks: each says what was expected, what came, and a hint."""
