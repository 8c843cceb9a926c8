"""Random tiny models of four families, and a tokenizer trained on the spot: for tests and the smoke profile."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

CONTEXT = 512  # tokens
VOCABULARY = 512
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<bos>", "eos_token": "<eos>"}  # ids 0, 1, 2

SHAPE = {
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": CONTEXT,
    # Wide enough that attention is far from uniform and the logits of neighbouring tokens differ.
    "initializer_range": 0.15,
}
FAMILIES = {
    "tiny-llama": ("llama", {}),
    "tiny-mistral": ("mistral", {"sliding_window": None}),
    "tiny-qwen2": ("qwen2", {}),
    "tiny-gemma2": ("gemma2", {"sliding_window": 32, "query_pre_attn_scalar": 16}),
}


@cache
def _tokenizer_json() -> str:
    """Train byte-level BPE on the prose of Python's own help topics."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    return tokenizer.to_str()


def tiny_tokenizer() -> "PreTrainedTokenizerFast":
    """A byte-level BPE tokenizer with 512 entries, trained on ``pydoc_data.topics``.

    Any text survives encoding and decoding; no special token is added. The merges follow the prose, which differs
    between Python versions, and are the same in every process of one version.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(_tokenizer_json())
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=CONTEXT, **SPECIAL_TOKENS)


def tiny_model(name: str, attn_implementation: str | None = None) -> "PreTrainedModel":
    """A random model on the CPU in float32 and eval mode; the same weights every time.

    Six layers, width 64, four query heads and two key/value heads of width 16, FFN 128, context 512. Norm weights, and
    the biases of Qwen2, are random as well, so that a mistake in either shows. The global random state is untouched.

    Parameters
    ----------
    name : str
        A key of ``FAMILIES``.
    attn_implementation : str, optional
        As in ``from_pretrained``; the default is transformers' own.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, particulars = FAMILIES[name]
    tokenizer = tiny_tokenizer()
    config = AutoConfig.for_model(
        model_type,
        **SHAPE | particulars,
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    # devices=[] and the CPU's own generator: torch.manual_seed would also reseed every GPU.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
        torch.default_generator.manual_seed(list(FAMILIES).index(name))
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attn_implementation, dtype=torch.float32)
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.add_(torch.randn(parameter.shape), alpha=0.1)
            elif key.endswith(".bias"):
                parameter.normal_(0.0, SHAPE["initializer_range"])
    return model.eval()
