"""Tables of notebooks 01 and 02."""

import contextlib
from collections.abc import Iterator

import pandas as pd

from harp_lib import paths
from harp_lib.accounting import paper_configs
from harp_lib.claims import percent
from harp_lib.experiments.norm_study import PLANS, plan_frame, stream_frame
from harp_lib.experiments.similarity_study import RANDOM, TRAINED, head_frame, layer_frame
from harp_lib.experiments.theory_study import theory_frame
from harp_lib.accounting import overtaking_length
from harp_lib.measure.corpora import TITLES
from harp_lib.measure.models import display_name
from harp_lib.norm_claims import norm_claims
from harp_lib.results import Cells, read_results
from harp_lib.similarity_claims import similarity_claims
from harp_lib.statistics import mean_interval, paired_change, perplexity_estimate
from harp_lib.theory_verdict import statement_table

Table = tuple[pd.DataFrame, str, pd.DataFrame]  # as people read it, the file's name, unrounded


def theory_tables(cells: Cells) -> Iterator[Table]:
    """What needs no model: the statements with their verdicts, the checks, the counterexamples, counted FLOPs."""
    statements, draws = statement_table(cells), theory_frame(cells, "draws")
    yield statements, "theory_statements", statements
    yield checks(draws), "theory_checks", draws
    examples = theory_frame(cells, "counterexamples")
    yield counterexamples(examples), "theory_counterexamples", examples
    yield overtaking(), "overtaking", overtaking()


def similarity_tables(cells: Cells) -> Iterator[Table]:
    """Every table of notebook 01 that shows a model."""
    claims = similarity_claims(cells)
    yield claims, "similarity_claims", claims
    yield similarity_layers(cells), "similarity_layers", layer_frame(cells)


def norm_tables(cells: Cells) -> Iterator[Table]:
    """Every table of notebook 02 that shows a model."""
    claims = norm_claims(cells)
    yield claims, "norm_claims", claims
    yield rescaling(cells), "rescaling", plan_frame(cells)


def full_verdict(theory: Cells, similarity: Cells, norms: Cells) -> pd.DataFrame:
    """All statements and all claims in one table; of notebook 01 those on the models that notebook 02 read."""
    models = {model for model, *_ in norms}
    known = {key: cell for key, cell in similarity.items() if key[0] in models}
    claims = [similarity_claims(known)] if known else []
    return pd.concat([statement_table(theory), *claims, norm_claims(norms)], ignore_index=True)


def own_results(profile: str, experiment: str) -> Cells:
    """Cells of the last finished run of this checkout, none if there was none."""
    with contextlib.suppress(FileNotFoundError):
        return read_results(profile, experiment, (paths.RESULTS,))
    return {}


def checks(draws: pd.DataFrame) -> pd.DataFrame:
    """Every inequality and identity on random draws."""
    return pd.DataFrame(
        {
            "inequality or identity": draws["check"],
            "random draws": [f"{number:,}" for number in draws["draws"]],
            "violations": [f"{number:,}" for number in draws["violations"]],
            "largest quotient of the sides": [
                f"{row.largest:.3f}" if row.kind == "inequality" else "" for row in draws.itertuples()
            ],
            "largest difference": [
                f"{row.largest:.0e}" if row.kind == "identity" else "" for row in draws.itertuples()
            ],
        }
    )


def counterexamples(examples: pd.DataFrame) -> pd.DataFrame:
    """What refutes what."""
    columns = {"statement": "statement", "construction": "construction", "says": "it says", "found": "found"}
    return examples.rename(columns=columns)[list(columns.values())].assign(call=[f"`{c}`" for c in examples["call"]])


def similarity_layers(cells: Cells) -> pd.DataFrame:
    """Mean ± standard error over documents in every layer, trained, and Sim with random weights."""
    layers, heads = layer_frame(cells), head_frame(cells)
    entropy = heads.groupby(["model", "method", "corpus", "document", "layer"])["entropy"].mean().reset_index()
    entropy = entropy.rename(columns={"entropy": "value"}).assign(quantity="entropy")
    both = pd.concat([layers, entropy])
    columns = {
        (TRAINED, "similarity"): "Sim",
        (TRAINED, "similarity without first"): "Sim without first token",
        (RANDOM, "similarity"): "Sim, random weights",
        (TRAINED, "block influence"): "BI",
        (TRAINED, "attention influence"): "BI of the attention alone",
        (TRAINED, "entropy"): "normalised entropy, mean of heads",
        (TRAINED, "value gap"): "‖ÂV − V‖/‖V‖",
        (TRAINED, "branch gap"): "‖A − B‖/‖H‖",
    }
    rows = []
    for (model, corpus), part in both.groupby(["model", "corpus"], sort=False):
        by = part.groupby(["method", "quantity", "layer"])["value"]
        mean, error, documents = by.mean(), by.sem(), part["document"].nunique()
        top = int(layers.loc[layers["model"] == model, "layer"].max())
        for layer in range(top + 1):
            row = {"model": display_name(model), "text": TITLES[corpus], "layer": layer if layer < top else "output"}
            for (method, quantity), title in columns.items():
                key = (method, quantity, layer)
                spread = f" ± {error[key]:.3f}" if key in mean and documents > 1 else ""
                row[title] = f"{mean[key]:.3f}{spread}" if key in mean else ""
            rows.append(row | {"documents": documents})
    return pd.DataFrame(rows)


def rescaling(cells: Cells) -> pd.DataFrame:
    """Each plan: its alphas, the norm at the top, and the perplexity on held-out text."""
    plans, streams, rows = plan_frame(cells), stream_frame(cells), []
    for model in streams["model"].unique():
        results = {plan: cells[model, plan, "reading"]["result"] for plan in PLANS}
        for plan, label in PLANS.items():
            result = results[plan]
            alphas = plans[(plans["model"] == model) & (plans["plan"] == plan)].sort_values("layer", ascending=False)
            top = streams[
                (streams["model"] == model) & (streams["plan"] == plan) & (streams["tokens"] == "without first")
            ]
            norm = mean_interval(top.loc[top["depth"] == top["depth"].max(), "ratio"] - 1)
            change = paired_change(results["searched"]["nll"], result["nll"], result["tokens"])
            value, error = perplexity_estimate(result["nll"], result["tokens"])
            rows.append(
                {
                    "model": display_name(model),
                    "plan": label,
                    "α from the top layer down": " ".join(f"{alpha:.2f}" for alpha in alphas["alpha"]),
                    "‖H‖ at the top, against dense": "" if plan == "dense" else percent(norm),
                    "perplexity": f"{value:.2f}" + (f" ± {error:.2f}" if len(result["nll"]) > 1 else ""),
                    "against searched α": "" if plan == "searched" else percent(change),
                    "text": TITLES[result["corpus"]],
                    "documents": len(result["nll"]),
                    "tokens": sum(result["tokens"]),
                }
            )
    return pd.DataFrame(rows)


def overtaking() -> pd.DataFrame:
    """Where attention overtakes the FFN in the paper's models, counted in four ways."""
    rows = []
    for model, config in paper_configs().items():
        row = {"model": model, "d_ff (paper)": f"{config.intermediate_size:,}"}
        for causal, count in ((False, "full square"), (True, "visible pairs")):
            for projections, name in ((False, ""), (True, ", with projections")):
                row[count + name] = f"{overtaking_length(config, causal, projections):,}"
        rows.append(row | {"context": f"{config.max_position_embeddings:,}"})
    return pd.DataFrame(rows)
