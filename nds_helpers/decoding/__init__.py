"""One device: sampling, plain decoding, drafters, verification, the loop, the trace."""
from .drafters import Draft, EitherDrafter, ModelDrafter, NGramDrafter
from .early_exit import EarlyExitDrafter
from .plain import autoregressive, autoregressive_rounds
from .policies import AdaptiveK, round_costs
from .sampling import Sampling, draw, probabilities, uniforms
from .speculative import speculative, speculative_rounds
from .streaming import stream_text
from .trace import Result, Round, Trace
from .verify import Verdict, acceptance, residual, verify_block, verify_tokens

__all__ = [
    "AdaptiveK", "Draft", "EarlyExitDrafter", "EitherDrafter", "ModelDrafter",
    "NGramDrafter", "Result", "Round", "Sampling", "Trace", "Verdict", "acceptance",
    "autoregressive", "autoregressive_rounds", "draw", "probabilities", "residual",
    "round_costs", "speculative", "speculative_rounds", "stream_text", "uniforms",
    "verify_block", "verify_tokens",
]
