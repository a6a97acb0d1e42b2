"""The other side of the bench: `transformers` on the same folders and machine."""
import logging
from copy import deepcopy

import torch
import transformers

DYNAMIC = "as shipped"  # K as transformers chooses it


class Peer:
    """`transformers`' own generate and assisted generation, in float32.

    Args:
        target, draft: Hugging Face folders.
    """

    def __init__(self, target, draft):
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        logging.getLogger("transformers").setLevel(logging.ERROR)
        self.target, self.draft = (
            transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True).eval()
            for folder in (target, draft))
        self.shipped = deepcopy(self.draft.generation_config)

    @torch.inference_mode()
    def generate(self, prompt, tokens, temperature, seed, k=0):
        """Generates as many tokens as ours is asked for.

        Args:
            prompt: LongTensor[T].
            tokens: at most so many.
            temperature: 0 (greedy) or more; no top-k, no top-p.
            seed: of the draws.
            k: 0 for plain; assisted generation with a constant K, or DYNAMIC.

        Returns:
            LongTensor[n], the new tokens.
        """
        settings = {"do_sample": False}
        if temperature:
            settings = {"do_sample": True, "temperature": float(temperature),
                        "top_k": 0, "top_p": 1.0}
        if k:
            settings["assistant_model"] = self.draft
            self.draft.generation_config = self.schedule(k)
        torch.manual_seed(seed)
        text = self.target.generate(
            prompt[None], attention_mask=torch.ones_like(prompt[None]),
            max_new_tokens=tokens, pad_token_id=0, **settings)
        return text[0, len(prompt):]

    def schedule(self, k):
        """The draft's generation config for a constant K, or as shipped."""
        config = deepcopy(self.shipped)
        if k != DYNAMIC:
            config.num_assistant_tokens = k
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0
        return config
