"""What several test files share, fixtures apart, which are in conftest.py."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import nbformat
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from harp_lib.pruning.architecture import decoder_layers, output_norm

CHECKOUT = Path(__file__).resolve().parents[1]
SHARED = CHECKOUT.parent / "shared"
FAMILIES = ("tiny-llama", "tiny-qwen2", "tiny-gemma2")  # tiny-mistral computes as tiny-llama does

ODD_NAME = "a {b} $c 'd' \"e\" `f` #1 %41 [g]* é\th"
"""The name of a folder, which shells, templates and patterns would read as something else."""
NEW = 12
ROUNDING = {"atol": 1e-4, "rtol": 1e-4}
"""How far logits of a model in float32 may differ that were summed in another order.

Processors differ in this order. A wrong token or layer makes a difference of 1e-2 or more.
"""
NOT_LINKED = ("results", "reference", "models")
"""Folders of data that a run in a scratch checkout has to itself."""
TIMED = ("seconds", "time", "device", "versions")
"""Entries of a cell in which two runs may differ."""
TIMED_QUANTITIES = ("seconds", "prompt", "generation")
"""Quantities of rows in which two runs may differ."""
VISION = {  # the smallest vision tower of a multimodal model
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def load_script(name):
    """A script of this checkout as a module, without running it."""
    spec = spec_from_file_location(Path(name).stem, CHECKOUT / name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def change_json(file, **values):
    """Change entries of a JSON file in place."""
    contents = json.loads(file.read_bytes()) | values
    file.write_text(json.dumps(contents), encoding="utf-8")


class Checkout:
    """A folder with this checkout's notebooks and data and no results, in which runs take place.

    Parameters
    ----------
    root : Path
        The folder, which is made.
    notebooks : dict of str to str, optional
        In place of the real notebooks: name and the code of one cell.
    """

    def __init__(self, root, notebooks=None):
        self.root = root
        self.code = CHECKOUT
        self.python = sys.executable
        self.results = root / "data" / "results" / "smoke"
        self.shown = root / "shown.txt"
        (root / "notebooks").mkdir(parents=True)
        (root / "data").mkdir()
        for source in (CHECKOUT / "data").iterdir():
            if source.name not in NOT_LINKED:
                (root / "data" / source.name).symlink_to(source)
        if notebooks:
            for name, code in notebooks.items():
                self.write(name, code)
        else:
            for source in CHECKOUT.glob("notebooks/[0-9][0-9]_*.ipynb"):
                (root / "notebooks" / source.name).symlink_to(source)

    def write(self, name, code, prose=""):
        """Write a notebook of three cells: the parameters, some text and some code."""
        parameters = nbformat.v4.new_code_cell(
            'profile = "mini"\nmodels = None\ndatasets = None\nseed = 0',
            metadata={"tags": ["parameters"]},
            id="p",
        )
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=[
                parameters,
                nbformat.v4.new_markdown_cell(prose, id="m"),
                nbformat.v4.new_code_cell(code, id="c"),
            ],
            metadata={"kernelspec": kernel},
        )
        nbformat.write(notebook, self.root / "notebooks" / f"{name}.ipynb")

    def start(self, *options, command="run", stdout=None):
        """Start ``./run_all.sh run`` with these options, and do not wait for it.

        The profile is smoke, unless the options name another.
        """
        module = [self.python, "-P", "-m", "harp_lib.cli"]
        profile = [] if "--profile" in options else ["--profile", "smoke"]
        environment = {
            **os.environ,
            "HARP_ROOT": str(self.root),
            "PYTHONPATH": str(self.code),
            "OMP_NUM_THREADS": "1",
        }
        with self.shown.open("a") as shown:  # a pipe that nobody reads would hold the run up
            return subprocess.Popen(
                [*module, command, *profile, *options],
                cwd=self.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout or shown,
                stderr=shown,
            )

    def run(self, *options, command="run"):
        """Run the same to its end: the exit code, and what it showed."""
        length_before = self.shown.stat().st_size if self.shown.exists() else 0
        code = self.start(*options, command=command).wait()
        return code, self.shown.read_bytes()[length_before:].decode()

    def cell_files(self):
        """Files of the finished cells, and when they were written."""
        files = (self.root / "data" / "results" / "cells").glob("[!.]*.json")
        return {file: file.stat().st_mtime_ns for file in files}

    def cells(self):
        """What each stored cell holds, without what is measured with a clock."""
        cells = {}
        for file in self.cell_files():
            cell = json.loads(file.read_text(encoding="utf-8"))
            cells[file.name] = _without_times(cell)
        return cells


def link_results(source, target):
    """Add the cells and refitted weights of a folder of results to those of another one."""
    for name in ("cells", "refits"):
        (target / name).mkdir(parents=True, exist_ok=True)
        for file in (source / name).glob("[!.]*"):
            with contextlib.suppress(FileExistsError):
                os.link(file, target / name / file.name)


def _without_times(value):
    if isinstance(value, list):
        return [_without_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, item in value.items():
        if key == "rows" and isinstance(item, dict) and "quantity" in item:
            item = _without_timed_rows(item)
        if key not in TIMED:
            kept[key] = _without_times(item)
    return kept


def _without_timed_rows(columns):
    """The columns of a cell's rows, without the rows that a clock has written."""
    keep = [quantity not in TIMED_QUANTITIES for quantity in columns["quantity"]]
    return {name: list(itertools.compress(values, keep)) for name, values in columns.items()}


OTHER_FAMILIES = {
    "qwen3": {},
    "gemma": {},
    "gemma3_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16,
    },
    "olmo2": {},  # norms after attention whose gain is w, not 1 + w
    "mixtral": {"num_local_experts": 2},
    "granitemoe": {"num_local_experts": 2},  # its FFN is not called mlp
    "cohere": {},  # attention and FFN in parallel
    "granite": {"residual_multiplier": 0.5, "logits_scaling": 4.0},
    "starcoder2": {"use_bias": True},
}


def small_model(model_type, **particulars):
    shape = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.2,
        "pad_token_id": 0,
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **shape | particulars)
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def model_of(tiny, family):
    """A tiny model of the registry, or a small one of ``OTHER_FAMILIES``, of 512 tokens."""
    if family in OTHER_FAMILIES:
        return small_model(family, vocab_size=512, **OTHER_FAMILIES[family])
    return tiny(family)


SHAPES = {
    "own heads": ("llama", {"num_key_value_heads": 4}),
    "one group": ("llama", {"num_key_value_heads": 1}),
    # Its attention reshapes by a stored number of heads.
    "counted heads": ("stablelm", {"use_qkv_bias": True}),
    "narrow heads": ("llama", {"head_dim": 4}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    **{family: (family, particulars) for family, particulars in OTHER_FAMILIES.items()},
}


def make(tiny, name):
    """A tiny model of the registry, or a small one of ``SHAPES`` or of a model type.

    It is in float64, so that twins whose sums run in another order agree on every processor.
    """
    if name.startswith("tiny-"):
        return in_float64(tiny(name))
    model_type, particulars = SHAPES.get(name, (name, {}))
    return in_float64(small_model(model_type, **particulars))


def in_float64(model):
    """The same model in float64, with experts by a kernel that takes it."""
    model.config._experts_implementation = "eager"
    return model.double()


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


@contextlib.contextmanager
def unchanged(model):
    """Context behind which weights, gradients, modules, their modes and hooks are as before."""
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    others = _all_but_weights(model)
    yield
    assert _all_but_weights(model) == others
    after = model.state_dict()
    assert list(after) == list(weights)
    for name, weight in weights.items():
        assert torch.equal(after[name], weight), name


def _all_but_weights(model):
    modules = []
    for name, module in model.named_modules():
        hooks = [*module._forward_hooks, *module._forward_pre_hooks]
        modules.append((name, type(module), module.training, hooks, vars(module).get("forward")))
    gradients = []
    for name, weight in model.named_parameters():
        place = None if weight.grad is None else weight.grad.data_ptr()
        gradients.append((name, weight.requires_grad, place))
    return modules, gradients, model.config._attn_implementation


def with_twins(model, alphas):
    """``model`` with hand-made value-only layers, given as alpha by layer index."""
    for layer, alpha in alphas.items():
        module = decoder_layers(model)[layer]
        module.self_attn = IdentityAttention(module.self_attn)
        multiply_branch(module, alpha)
    return model


def generate(model, ids, mask=None, cache=None, assistant=None, **options):
    """``NEW`` tokens after ``ids``, with their logits."""
    if mask is None:
        mask = torch.ones_like(ids)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if cache is not None:
        inputs["past_key_values"] = cache
    settings = GenerationConfig(
        return_dict_in_generate=True,
        output_logits=True,
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=2,
        **options,
    )
    return model.generate(**inputs, generation_config=settings, assistant_model=assistant)


def assert_same(first, second):
    """Two results of ``generate`` have the same tokens, and the same logits but for rounding."""
    assert torch.equal(first.sequences, second.sequences)
    for a, b in zip(first.logits, second.logits, strict=True):
        torch.testing.assert_close(a, b, **ROUNDING)


class IdentityAttention(torch.nn.Module):
    """The obvious twin of a value-only layer: stock attention on each token as its own text."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(
        self,
        hidden_states,
        position_embeddings=None,
        attention_mask=None,
        past_key_values=None,
        **kwargs,
    ):
        batch, length, width = hidden_states.shape
        first_position = tuple(
            part[:, :1].expand(batch, -1, -1).repeat_interleave(length, 0)  # (B·N, 1, Dh)
            for part in position_embeddings
        )
        alone = hidden_states.reshape(batch * length, 1, width)
        positions = {}
        if "position_ids" in kwargs:  # Ministral 3 scales queries by them
            positions["position_ids"] = torch.zeros(batch * length, 1, dtype=torch.long)
        output, _ = self.attention(
            alone,
            position_embeddings=first_position,
            attention_mask=None,
            past_key_values=None,
            **positions,
        )
        return output.view(batch, length, width), None


def multiply_branch(layer, alpha):
    norm = output_norm(layer)
    if norm is not None:
        norm.register_forward_hook(lambda module, inputs, output: alpha * output)
    else:
        layer.self_attn.register_forward_hook(
            lambda module, inputs, output: (alpha * output[0], None)
        )


class _EmbeddingsEverywhere(LlamaModel):
    """A decoder that adds the embeddings again after each layer."""

    def forward(self, input_ids, attention_mask=None, **kwargs):
        embeddings = self.embed_tokens(input_ids)  # (B, N, d)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        rotations = self.rotary_emb(embeddings, positions)
        hidden = embeddings
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=rotations) + embeddings
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden))


def with_embeddings_everywhere(model):
    """A tiny Llama whose layers cannot be run on hidden states alone."""
    model.model.__class__ = _EmbeddingsEverywhere
    return model
