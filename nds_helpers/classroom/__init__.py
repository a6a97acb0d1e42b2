"""Exercise checks, each with what was expected, what came, and a hint; and grading."""
