"""Theory, measurement, plots, explorers."""
