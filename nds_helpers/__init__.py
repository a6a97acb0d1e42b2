"""nds_helpers: the package that the chapters of the course build up.

Rooms, in the order of the path; each imports only from the ones before it:
models (decoder, cache, checkpoints), decoding (sampling, drafting, verifying),
lab (theory, measurement, plots, explorers), classroom (exercise checks).
"""
