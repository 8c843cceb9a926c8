"""Every causal family of transformers, tiny and random, against what the library promises.

``python tests/families.py`` writes the table of ``docs/library.md``; with names of families, it
prints their rows alone. An outcome is *yes*, *no* with the reason of a refusal, *as hf* (lm-eval's
own code runs), *hf fails* (lm-eval's own code does), or *–* where no model could be pruned.
"""

import copy
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from helpers import CHECKOUT, with_twins
from lm_twins import requests_of, with_tokenizer
from tiny_families import IDS, all_rows, build
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from harp_lib import (
    PruningPlan,
    apply_plan,
    load_pruned,
    make_plan,
    perplexity,
    save_gguf,
    save_nemotron_nas,
    save_pruned,
    search_alphas,
)
from harp_lib.models.registry import tiny_tokenizer
from harp_lib.pruning.architecture import decoder_layers

PAGE = CHECKOUT / "docs" / "library.md"
MARKS = ("<!-- families: python tests/families.py -->", "<!-- end of families -->")
COLUMNS = ("HARP", "baselines", "hf-prefix", "GGUF", "nemotron-nas")
SHORTER = (
    (r"^\w+ is not supported: ", ""),
    (r"^(in )?layer \d+,? ", ""),
    (r"^has no self_attn with separate [^()]*\((.*)\)$", r"\1"),
    (r"^\w+ models cannot be written as .*$", "another architecture"),
)


class Wrong(AssertionError):
    """The library gave another result than the model."""


def outcomes(family: str) -> dict[str, str]:
    """What each column of the table says of a family, and *perplexity* beside them."""
    model = build(family)
    row = {"perplexity": outcome(check_perplexity, model)}
    row["hf-prefix"] = outcome(check_prefix, model)
    # Models from a folder differ from fresh ones in the names of their weights.
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = type(model).from_pretrained(folder).eval()
    row["HARP"] = outcome(check_harp, copy.deepcopy(model))
    row["baselines"] = outcome(check_baseline, copy.deepcopy(model))
    if row["HARP"] != "yes":  # there is no pruned model to be written
        return row | dict.fromkeys(("GGUF", "nemotron-nas"), "–")
    row["GGUF"] = outcome(check_export, copy.deepcopy(model), save_gguf)
    row["nemotron-nas"] = outcome(check_export, copy.deepcopy(model), save_nemotron_nas)
    return row


def outcome(check: Callable, *args) -> str:
    """What ``check`` returns, or the reason of a refusal, or what went wrong."""
    try:
        return check(*args)
    except ValueError as error:
        return reason(error)
    except Wrong as error:
        return f"WRONG: {error}"
    except Exception as error:
        return f"CRASH: {type(error).__name__}: {error}".replace("\n", " ")[:200]


def reason(error: ValueError) -> str:
    """The message of a refusal in a few words: what is in the way, and not what can be done."""
    text = str(error).replace("\n", " ").split(";")[0].split(". ")[0].strip()
    for pattern, short in SHORTER:
        text = re.sub(pattern, short, text)
    return f"no: {text}"


def same(output: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    """Raise :class:`Wrong` if logits differ by more than rounding."""
    error = (output - expected).abs().max().item()
    if not error <= 1e-4 * max(1.0, expected.abs().max().item()):
        raise Wrong(f"{what}: logits differ by {error:.2g}")


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(IDS).logits


def check_perplexity(model: PreTrainedModel) -> str:
    """``perplexity`` is that of the model's own logits."""
    log_probs = logits(model)[:, :-1].log_softmax(-1)
    expected = -log_probs.gather(-1, IDS[:, 1:, None]).mean()
    result = perplexity(model, IDS)
    if abs(result - expected.exp()) > 1e-3 * expected.exp():
        raise Wrong(f"perplexity {result:.5g} for {expected.exp():.5g}")
    return "yes"


def check_prefix(model: PreTrainedModel) -> str:
    """Likelihoods and a text of ``hf-prefix`` are those of ``hf``."""
    stock, ours = with_tokenizer(model)
    few_shots = "def f(x): return the value of the object in a statement that follows it. " * 2
    pairs = [(few_shots + "one", " a"), (few_shots + "one", " name"), (few_shots + "two", " a")]
    scored = requests_of("loglikelihood", *pairs)
    settings = {"until": ["\n"], "max_gen_toks": 6, "do_sample": False}
    written = requests_of("generate_until", (few_shots, settings))
    try:
        expected = stock.loglikelihood(scored, disable_tqdm=True)
        text = stock.generate_until(written, disable_tqdm=True)
    except Exception:
        return "hf fails"
    for (result, _), (value, _) in zip(
        ours.loglikelihood(scored, disable_tqdm=True), expected, strict=True
    ):
        if abs(result - value) > 1e-3:
            raise Wrong(f"likelihood {result:.5g} for {value:.5g}")
    if ours.generate_until(written, disable_tqdm=True) != text:
        raise Wrong("another text")
    return "yes" if ours._can_share() else "as hf"


def check_harp(model: PreTrainedModel) -> str:
    """Search, pruning, generation and loading of a model whose top layers are value-only."""
    num_layers = len(decoder_layers(model))
    alphas = {num_layers - 1: 0.5, num_layers - 2: 0.25}
    plan = PruningPlan.value_only(num_layers, alphas)
    pruned = apply_plan(copy.deepcopy(model), plan)
    same(logits(pruned), logits(with_twins(copy.deepcopy(model), alphas)), "pruned against masked")
    searches = [
        search_alphas(model, IDS, 2, grid=[0.5, 1], reuse_prefix=reuse, progress=False)
        for reuse in (False, True)
    ]
    for layer, expected in searches[0].perplexities.items():
        for alpha, value in expected.items():
            result = searches[1].perplexities[layer][alpha]
            if abs(result - value) > 1e-3 * value:
                raise Wrong(f"search in layer {layer}: {result:.5g} for {value:.5g}")
    check_use(pruned)
    return "yes"


def check_baseline(model: PreTrainedModel) -> str:
    """Two key/value groups are removed by FLAP."""
    plan = make_plan("flap", model, IDS, kv_groups=2)
    masked = copy.deepcopy(model)
    for index, layer_plan in plan.layers.items():
        _mask(decoder_layers(masked)[index].self_attn, layer_plan)
    pruned = apply_plan(model, plan)
    same(logits(pruned), logits(masked), "pruned against masked")
    check_use(pruned)
    return "yes"


@torch.no_grad()
def _mask(attention: nn.Module, layer_plan) -> None:
    """Replace what heads write by its mean, or by zero."""
    output = attention.o_proj
    num_groups = attention.v_proj.out_features // attention.head_dim
    columns = torch.arange(output.in_features).view(num_groups, -1)
    columns = columns[list(layer_plan.removed_groups)].flatten()
    if layer_plan.group_means is not None:
        bias = output.weight[:, columns] @ torch.tensor(layer_plan.group_means)
        if output.bias is not None:
            bias = bias + output.bias
        output.bias = nn.Parameter(bias)
    output.weight[:, columns] = 0


def check_use(pruned: PreTrainedModel) -> None:
    """A pruned model generates with a cache as without, and is the same when it is loaded."""
    expected = logits(pruned)
    texts = []
    for use_cache in (True, False):
        pruned.tail_only_prefill = use_cache
        texts.append(
            pruned.generate(
                IDS,
                attention_mask=torch.ones_like(IDS),
                max_new_tokens=6,
                min_new_tokens=6,
                do_sample=False,
                use_cache=use_cache,
            )
        )
    if not torch.equal(*texts):
        raise Wrong("another text with a cache than without")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pruned"
        save_pruned(pruned, tiny_tokenizer(), path)
        same(logits(load_pruned(path)[0]), expected, "load_pruned")
        remote = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
        same(logits(remote.eval()), expected, "trust_remote_code")


def check_export(model: PreTrainedModel, save: Callable) -> str:
    """A saver writes the pruned model; it reads back what it wrote and compares the logits."""
    num_layers = len(decoder_layers(model))
    apply_plan(model, PruningPlan.value_only(num_layers, {num_layers - 1: 0.5}))
    with tempfile.TemporaryDirectory() as folder:
        save(model, tiny_tokenizer(), Path(folder) / "file.gguf")
    return "yes"


def table(rows: dict[str, dict[str, str]]) -> str:
    """The rows as Markdown."""
    lines = [f"| family | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for family, row in rows.items():
        lines.append(f"| {family} | {' | '.join(row[column] for column in COLUMNS)} |")
    return "\n".join(lines)


def write_table(rows: dict[str, dict[str, str]], not_built: dict[str, str]) -> None:
    """Put the table between its marks in ``docs/library.md``."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    missing = f"No tiny model of these could be built: {', '.join(not_built)}."
    content = f"{MARKS[0]}\n\n{table(rows)}\n\n{missing}\n\n{MARKS[1]}"
    PAGE.write_text(before + content + after, encoding="utf-8")


def main(families: list[str]) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, str]] = {}
    not_built: dict[str, str] = {}
    for family in families or all_rows():
        try:
            build(family)
        except Exception as error:
            not_built[family] = f"{type(error).__name__}: {error}".replace("\n", " ")[:120]
            print(f"{family} | not built: {not_built[family]}", flush=True)
            continue
        rows[family] = outcomes(family)
        print(
            family,
            *(f"{key}: {value}" for key, value in rows[family].items()),
            sep=" | ",
            flush=True,
        )
    if not families:
        write_table(rows, not_built)


if __name__ == "__main__":
    main(sys.argv[1:])
