"""lm-eval for any transformers decoder, where what requests begin with is computed once.

    lm_eval.simple_evaluate(PrefixLM(pretrained=model, tokenizer=tokenizer), tasks=["mmlu"])

The tokens of all requests form a tree: few-shot examples, then questions, then choices.

1. Tokens that many requests begin with are read into a KV cache, which every branch continues.
2. The rest of the tree is read some hundred tokens at a time, each token once. The branches stand
   one after another in one sequence, and a mask shows every token its ancestors alone.
3. Logits are computed where an answer is scored, and nowhere else.
4. Texts are written side by side, into caches that have room for the tokens to come.

Scores are those of lm-eval's HFLM, to rounding. These files need torch, transformers and lm-eval,
and nothing else: they can become a package of their own.

Shapes: B texts, T tokens of a pass, S keys (those in the cache, then those of the pass), U scored
tokens, V words of the vocabulary, K key/value heads of width Dh.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    # lm-eval is imported only when its model is asked for.
    if name == "PrefixLM":
        from .lm import PrefixLM

        return PrefixLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
