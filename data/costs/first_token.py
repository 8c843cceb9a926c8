"""Measure what the token before a text does to perplexity, and to the alpha that HARP searches.

    python data/costs/first_token.py qwen2.5-coder-0.5b --datasets DIR

A text that perplexity is measured on begins after one token, as in lm-eval: the tokenizer's BOS
token, or else its EOS token. A GGUF file may name a BOS token that the model's own tokenizer on the
hub does not have. So this scores the same tokens of WikiText-2 after nothing, after the BOS and
after the EOS token, dense and with the alpha that was searched on texts after the one or the other.
It takes some minutes.
"""

import argparse

import torch

from harp_lib import load_model, perplexity, search_alphas
from harp_lib.config import load_profile, profile_for
from harp_lib.pruning.surgery import temporarily_pruned
from harp_lib.text.corpora import excerpt, load_corpus
from harp_lib.text.tokens import Window

SCORED = ("validation", 8, 512)  # held-out documents, and tokens of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--datasets", required=True, help="hub, or a folder")
    options = parser.parse_args()
    profile = load_profile("small", [options.model], options.datasets)
    profile = profile_for(options.model, profile)
    model, tokenizer = load_model(options.model, profile["dtype"])

    def windows(split: str, documents: int, tokens: int, before: list[int]) -> list[Window]:
        """Documents of WikiText-2 after some tokens; all of their own tokens but one are scored."""
        corpus = load_corpus("wikitext", split, options.datasets)
        begun = []
        for text in excerpt(corpus, tokenizer, documents, tokens).texts:
            ids = tokenizer(text, add_special_tokens=False).input_ids
            begun.append(Window(torch.tensor(before + ids), len(ids) - 1))
        return begun

    firsts = {"nothing": []}
    for token in (tokenizer.bos_token, tokenizer.eos_token):
        if token is not None:
            firsts[token] = [tokenizer.convert_tokens_to_ids(token)]

    def show(what: str) -> None:
        """Print the perplexity of held-out text after each first token."""
        values = {name: perplexity(model, windows(*SCORED, ids)) for name, ids in firsts.items()}
        after = ", ".join(f"{value:.2f} after {name}" for name, value in values.items())
        print(f"{what}: {after}", flush=True)

    show(f"{options.model}, dense")
    settings = profile["alpha_search"]
    searched = ("test", settings["documents"], settings["tokens"])
    count = profile["pruned_layers"][options.model]
    for name, ids in firsts.items():
        if ids:
            search = search_alphas(model, windows(*searched, ids), count)
            with temporarily_pruned(model, search.plan):
                show(f"alpha searched after {name}, top layer first: {search.alphas}")


if __name__ == "__main__":
    main()
