"""Early exit: the target guesses for itself, with its first layers only."""
from ..models.borrowed import early_exit
from .drafters import ModelDrafter


class EarlyExitDrafter(ModelDrafter):
    """Drafts with the first layers of the target, its own norm and its own head.

    It needs no second model and takes no memory but its cache; it guesses well
    where a model was trained so that its first layers alone make sense (Elhoushi et
    al. 2024, "LayerSkip"), and most were not.

    Args:
        target: Decoder.
        layers: how many layers guess, at least 1 and fewer than the target has.
    """

    def __init__(self, target, layers):
        super().__init__(early_exit(target, layers))
