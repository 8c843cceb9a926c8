"""Numbers of the findings in 09_refit.ipynb."""

import numpy as np
import pandas as pd

from findings.stored import ALL_MODELS, CODER, GEMMA, LARGER, MODELS, SMOLLM, finding
from harp_lib import config
from harp_lib.report import data, perplexity_changes, tables_frontier
from harp_lib.report.perplexity_changes import HARP_TOP, PASSKEY, REFIT, REFITTED

NOTEBOOK = "09_refit.ipynb"
SMALL = config.load_profile("small")


def usual(reference=None) -> pd.DataFrame:
    return perplexity_changes.usual(perplexity_changes.changes(SMALL, reference))


def part(frame, method, ranking, model, corpus=None, layers=None, texts=None) -> pd.DataFrame:
    """Rows of one kind of change of one model; of a third of its layers unless said otherwise."""
    chosen = (frame["method"] == method) & (frame["ranking"] == ranking)
    chosen &= frame["model"] == model
    if layers is None:
        chosen &= perplexity_changes.is_third(frame, perplexity_changes.num_layers(SMALL))
    else:
        chosen &= frame["layers"] == layers
    if corpus is None:
        chosen &= frame["corpus"] != PASSKEY
    else:
        chosen &= frame["corpus"] == corpus
    if texts is not None:
        chosen &= frame["texts"] == texts
    return frame[chosen]


def ends(frame: pd.DataFrame) -> list[float]:
    [row] = frame[["value", "low", "high"]].itertuples(index=False)
    return list(row)


def span(frame: pd.DataFrame) -> list[float]:
    """The lowest and the highest multiple."""
    return [frame["value"].min(), frame["value"].max()]


def half(model: str) -> int:
    """How many layers are half of a model's."""
    return perplexity_changes.num_layers(SMALL)[model] // 2


def fifth(model: str) -> int:
    """How many layers HARP takes of a model."""
    return SMALL["pruned_layers"][model]


def third(model: str) -> None:
    """No number: :func:`part` takes a third of the layers by itself."""


def spans(method: str, ranking: str, reference, layers=third) -> list[float]:
    """The lowest and the highest multiple over the three texts, model by model."""
    frame = usual(reference)
    numbers = []
    for model in MODELS:
        rows = part(frame, method, ranking, model, layers=layers(model))
        assert len(rows) == 3
        numbers += span(rows)
    return numbers


@finding(
    NOTEBOOK,
    "On the news, refitted layers of least influence have {:.2f} [{:.2f}, {:.2f}] times HARP's "
    "perplexity on SmolLM2, {:.2f} [{:.2f}, {:.2f}] on Gemma, {:.2f} [{:.2f}, {:.2f}] on the coder "
    "and {:.2f} [{:.2f}, {:.2f}] on the 1.5B",
)
def against_harp():
    frame = usual(HARP_TOP)
    numbers = []
    for model in ALL_MODELS:
        refit = part(frame, REFIT, "influence", model)
        assert (refit["high"] < 1).all()
        assert (refit["documents"] == 12).all()
        numbers += ends(refit[refit["corpus"] == "multi_news"])
    return numbers


def on_the_news(method: str, ranking: str, layers) -> list[float]:
    """Multiples of the dense perplexity on the news, of so many layers of each model."""
    frame = usual()
    numbers = []
    for model in MODELS:
        rows = part(frame, method, ranking, model, "multi_news", layers(model))
        if method != "harp":
            rows = rows[rows["texts"] == 2]
        numbers.append(rows["value"].item())
    return numbers


@finding(
    NOTEBOOK,
    "With half of them HARP's perplexity on the news is {:.1f} times the dense model's on SmolLM2, "
    "{:.1f} times on Gemma and {:.1f} times on the coder. One α a layer, fitted by least squares "
    "in the layers of least influence, has {:.1f}, {:.1f} and {:.1f} times, and the refit of these "
    "layers {:.1f}, {:.1f} and {:.1f} times",
)
def half_of_the_layers():
    numbers = on_the_news("harp", "top", half)
    numbers += on_the_news("alpha-fit", "influence", half)
    return numbers + on_the_news(REFIT, "influence", half)


@finding(
    NOTEBOOK,
    "On SmolLM2 it is the layers: one α in each has {:.2f} to {:.2f} times the refit's perplexity "
    "in the same layers, and the refit of the top layers {:.1f} to {:.1f} times",
)
def on_smollm():
    return alphas_and_top(SMOLLM)


@finding(
    NOTEBOOK,
    "On Gemma it is the weights: α has {:.1f} to {:.1f} times, and the refit of the top layers "
    "{:.2f} to {:.2f} times",
)
def on_gemma():
    return alphas_and_top(GEMMA)


@finding(
    NOTEBOOK,
    "On the coder it is the layers, too ({:.2f} to {:.2f} times, and {:.1f} to {:.1f} times), and "
    "on the 1.5B ({:.2f} to {:.2f} times, and {:.1f} to {:.1f} times)",
)
def on_the_coders():
    return alphas_and_top(CODER) + alphas_and_top(LARGER)


def alphas_and_top(model: str) -> list[float]:
    """What one half of the change loses against both: other layers alone, and a refit alone."""
    frame = usual(REFITTED)
    alphas = part(frame, "alpha-fit", "influence", model)
    top = part(frame, REFIT, "top", model, texts=2)
    return span(alphas) + span(top)


@finding(
    NOTEBOOK,
    "In the layers of least influence NBL has {:.2f} to {:.2f} times the refit's perplexity on "
    "SmolLM2, Gemma and the coder, over all three texts, and {:.2f} to {:.2f} times on the 1.5B, "
    "where it is shown to be ahead on the news alone",
)
def against_nbl():
    frame = usual(REFITTED)
    rows = pd.concat([part(frame, "nbl", "influence", model) for model in MODELS])
    assert len(rows) == 9
    larger = part(frame, "nbl", "influence", LARGER)
    assert larger.loc[larger["high"] < 1, "corpus"].tolist() == ["multi_news"]
    return span(rows) + span(larger)


@finding(
    NOTEBOOK,
    "With half of the layers it has {:.2f} to {:.2f} times on SmolLM2, {:.2f} to {:.2f} times on "
    "Gemma and {:.2f} to {:.2f} times on the coder",
)
def against_nbl_in_half_of_the_layers():
    return spans("nbl", "influence", REFITTED, half)


@finding(
    NOTEBOOK,
    "In the layers explained best it has {:.2f} to {:.2f} times on SmolLM2 and Gemma, over three "
    "draws of the calibration text, but {:.2f} to {:.2f} times on the coder; on the 1.5B no "
    "difference is shown",
)
def against_nbl_where_explained_best():
    _, frame = tables_frontier.refit_against_nbl(SMALL)
    frame = frame[frame["chosen"] == "explained best"]
    drawn = frame[frame["model"].isin([SMOLLM, GEMMA])]
    assert drawn["draws"].eq(3).all()
    coder = frame[frame["model"] == CODER]
    assert (coder["low"] > 1).all()
    larger = frame[frame["model"] == LARGER]
    assert ((larger["low"] < 1) & (larger["high"] > 1)).all()
    return [drawn["mean"].min(), drawn["mean"].max(), *span(coder)]


def of_rankings(model: str, layers=None, corpus="multi_news") -> pd.Series:
    """Refits' multiples of the dense perplexity, by ranking."""
    frame = usual()
    frame = frame[(frame["method"] == REFIT) & (frame["model"] == model) & (frame["texts"] == 2)]
    frame = frame[frame["corpus"] == corpus]
    if layers is None:
        frame = frame[perplexity_changes.is_third(frame, perplexity_changes.num_layers(SMALL))]
    else:
        frame = frame[frame["layers"] == layers]
    return frame.set_index("ranking")["value"]


@finding(
    NOTEBOOK,
    "A third of them has {:.2f} times the dense perplexity on the news, where those of least "
    "influence have {:.2f} and the top layers {:.2f}",
)
def rankings_on_the_coder():
    values = of_rankings(CODER)
    return values["explained"], values["influence"], values["top"]


@finding(
    NOTEBOOK,
    "On Gemma the greedy search is ahead with a third of the layers ({:.2f} against {:.2f} times "
    "the dense perplexity on the news), and behind with half of them ({:.2f} against {:.2f})",
)
def greedy_on_gemma():
    numbers = []
    for layers in (None, half(GEMMA)):
        values = of_rankings(GEMMA, layers)
        numbers += [values["greedy"], values["influence"]]
    assert numbers[0] < numbers[1]
    assert numbers[2] > numbers[3]
    return numbers


@finding(
    NOTEBOOK,
    "Gate-Norm, which reads no text, is the best choice with half of the coder's layers ({:.2f} "
    "against {:.2f} times the dense perplexity on the news) and the worst one on Gemma ({:.1f} "
    "times with a third)",
)
def gate_norm():
    coder = of_rankings(CODER, half(CODER))
    gemma = of_rankings(GEMMA)
    assert coder.idxmin() == "gate-norm"
    assert gemma.idxmax() == "gate-norm"
    return coder["gate-norm"], coder["influence"], gemma["gate-norm"]


@finding(
    NOTEBOOK,
    "On the 1.5B it is far ahead: with a third of the layers it has {:.2f} times the dense "
    "perplexity on the news, the layers of least influence {:.2f} times, and those explained best, "
    "layer 0 among them again, {:.2f} times",
)
def rankings_on_the_larger_coder():
    values = of_rankings(LARGER)
    assert values.idxmin() == "gate-norm"
    assert ranked(LARGER, "explained").rank(ascending=False)[0] <= 9
    to_influence = usual(REFITTED)
    assert (part(to_influence, REFIT, "gate-norm", LARGER)["high"] < 1).all()
    return values["gate-norm"], values["influence"], values["explained"]


@finding(
    NOTEBOOK,
    "On the 1.5B both find none, though the dense model finds all. There the layers of least "
    "influence are {} of the {} top ones and three just below; the layers explained best, with "
    "their far higher perplexity on all texts, find {:.0f} %",
)
def keys_of_the_larger_coder():
    found = found_keys(LARGER)
    assert found[REFIT, "influence"] == found["harp", "top"] == 0
    exact = data.tidy("small", "frontier", "exact")
    dense = exact[(exact["method"] == "dense") & (exact["model"] == LARGER)]
    assert (dense["value"] == 1).all()
    explained = part(usual(REFITTED), REFIT, "explained", LARGER)
    assert (explained["low"] > 2).all()
    influence = ranked(LARGER, "influence").sort_values(kind="stable").index[:9]
    in_top = [layer for layer in influence if layer >= 19]
    assert sorted(set(influence) - set(in_top)) == [14, 16, 17]
    return len(in_top), len(influence), 100 * found[REFIT, "explained"]


@finding(
    NOTEBOOK,
    "From {0:,} to {1:,} tokens the perplexity of the news falls from {2:.1f} to {3:.1f} times the "
    "dense model's on SmolLM2 and from {5:.1f} to {6:.1f} times on Gemma. Four times as many "
    "tokens again bring it to {4:.1f} and {7:.1f} times",
)
def calibration_curve():
    frame = perplexity_changes.changes(SMALL)
    frame = frame[(frame["seed"] == 0) & (frame["prompts"] == 0) & frame["without"].isna()]
    numbers = []
    for model in (SMOLLM, GEMMA):
        curve = part(frame, REFIT, "explained", model, "multi_news", texts=2)
        curve = curve.set_index("calibration_tokens")["value"]
        numbers += [curve[3072], curve[12288], curve[4 * 12288]]
    return [3072, 12288, *numbers]


def found_keys(model: str) -> pd.Series:
    """The share of pass keys that is found with a third of the layers changed."""
    exact = perplexity_changes.usual(data.tidy("small", "frontier", "exact"))
    third = perplexity_changes.is_third(exact, perplexity_changes.num_layers(SMALL))
    of_model = exact[third & (exact["model"] == model)]
    return of_model.groupby(["method", "ranking"])["value"].mean()


@finding(
    NOTEBOOK,
    "The refit of the layers of least influence finds {:.0f} % of the keys on SmolLM2, {:.0f} % on "
    "Gemma and {:.0f} % on the coder; HARP, which changes the top layers, finds {:.0f} %, {:.0f} % "
    "and {:.0f} %",
)
def keys_found():
    found = [100 * found_keys(model)[REFIT, "influence"] for model in MODELS]
    return found + [100 * found_keys(model)["harp", "top"] for model in MODELS]


@finding(
    NOTEBOOK,
    "the refit of the layers explained best finds none of the {} on Gemma. One layer is most to "
    "blame: if layer 10 keeps its attention, {:.0f} % are found, and if any other chosen layer "
    "does, at most {:.0f} %. Twelve pass keys in the calibration text, none of which is asked for "
    "here, bring back {:.0f} %",
)
def passkeys_of_gemma():
    _, study = tables_frontier.passkey_study(SMALL)
    study = study[study["model"] == GEMMA]
    refitted = study[study["method"] == REFIT]
    by_layer = refitted.dropna(subset="without").set_index("without")["found"]
    others = by_layer.drop(10)
    with_prompts = refitted.loc[refitted["prompts"] == 12, "found"].item()
    plain = refitted[refitted["without"].isna() & (refitted["prompts"] == 0)]
    assert plain["found"].item() == 0
    assert study.loc[study["method"] == "harp", "found"].item() == 1
    [keys] = study["keys"].unique()
    return keys, 100 * by_layer[10], 100 * others.max(), 100 * with_prompts


@finding(
    NOTEBOOK,
    "takes {:.0f} % of the dense model's operations on SmolLM2, {:.0f} % on Gemma, {:.0f} % on the "
    "coder and {:.0f} % on the 1.5B with the layers of least influence; with the top layers it "
    "takes {:.0f} to {:.0f} %",
)
def costs():
    _, frame = tables_frontier.frontier_costs(SMALL)
    left = 100 * frame.set_index(["model", "method", "ranking"])["prefill left"]
    tops = [left[model, REFIT, "top"] for model in ALL_MODELS]
    return [left[model, REFIT, "influence"] for model in ALL_MODELS] + [min(tops), max(tops)]


@finding(
    NOTEBOOK,
    "the dense model's attention is explained by {:.2f} to {:.2f} of its variance, over all layers "
    "of the four models",
)
def explained_variance():
    rows = data.tidy("small", "frontier", "explained")
    rows = rows[(rows["method"] == "dense") & (rows["seed"] == 0)]
    highest = rows.loc[rows["value"].idxmax()]
    assert (highest["model"], highest["layer"]) == (SMOLLM, 0)
    return rows["value"].min(), rows["value"].max()


@finding(
    NOTEBOOK,
    "They include layer 0, which a linear map explains well ({:.2f} of its variance) although its "
    "attention turns the stream most (influence {:.2f}; the median layer has {:.2f})",
)
def influence_of_layer_0():
    explained = ranked(CODER, "explained")
    influence = ranked(CODER, "influence")
    assert influence.idxmax() == 0
    assert explained.rank(ascending=False)[0] <= 8
    return explained[0], influence[0], influence.median()


def ranked(model: str, ranking: str) -> pd.Series:
    """What the dense model's layers are ranked by, of each layer."""
    rows = data.tidy("small", "frontier", "explained", "score")
    rows = rows[(rows["method"] == "dense") & (rows["seed"] == 0) & (rows["model"] == model)]
    rows = rows[rows["ranking"] == ranking]
    return rows.set_index("layer")["value"]


@finding(
    NOTEBOOK,
    "At the top, α by least squares has {:.2f} to {:.2f} times the perplexity of the searched α on "
    "SmolLM2, {:.2f} to {:.2f} times on Gemma, {:.2f} to {:.2f} times on the coder and {:.2f} to "
    "{:.2f} times on the 1.5B",
)
def fitted_against_searched():
    on_larger = part(usual(HARP_TOP), "alpha-fit", "top", LARGER)
    return spans("alpha-fit", "top", HARP_TOP) + span(on_larger)


def apart_from_harp(task: str) -> tuple[list[str], list[float]]:
    """The models on which the refit of least influence differs from HARP, and by how much."""
    _, frame = tables_frontier.frontier_benchmarks(SMALL)
    assert frame["questions"].eq(60).all()
    models = []
    numbers = []
    for model in ALL_MODELS:
        [row] = frame[(frame["model"] == model) & (frame["task"] == task)].to_dict("records")
        ends = sorted(abs(row[name]) for name in ("influence low", "influence high"))
        if row["influence low"] * row["influence high"] > 0:
            models.append(model)
            numbers += [abs(row["influence"]), *ends]
    return models, numbers


@finding(
    NOTEBOOK,
    "On TriviaQA the refit of the layers of least influence is ahead of HARP on all four models, "
    "by {:.2f} bits per byte [{:.2f}, {:.2f}] on SmolLM2, {:.2f} [{:.2f}, {:.2f}] on Gemma, {:.2f} "
    "[{:.2f}, {:.2f}] on the coder and {:.2f} [{:.2f}, {:.2f}] on the 1.5B",
)
def written_answers():
    models, numbers = apart_from_harp("triviaqa")
    assert tuple(models) == ALL_MODELS
    return numbers


@finding(
    NOTEBOOK,
    "On PIQA it is behind on Gemma, by {:.2f} nats [{:.2f}, {:.2f}], and on OpenBookQA ahead on "
    "SmolLM2, by {:.2f} nats [{:.2f}, {:.2f}]",
)
def chosen_answers():
    models, behind = apart_from_harp("piqa")
    assert models == [GEMMA]
    models, ahead = apart_from_harp("openbookqa")
    assert models == [SMOLLM]
    return behind + ahead


@finding(NOTEBOOK, "The table has 95 % intervals over {} documents of each text")
def documents_of_each_text():
    frame = usual(HARP_TOP)
    [documents] = frame.loc[frame["corpus"] != PASSKEY, "documents"].unique()
    return [documents]


@finding(
    NOTEBOOK,
    "With a fifth of the layers it has {:.2f} to {:.2f} times on SmolLM2, {:.2f} to {:.2f} times "
    "on Gemma and {:.2f} to {:.2f} times on the coder",
)
def fitted_against_searched_in_a_fifth():
    return spans("alpha-fit", "top", HARP_TOP, fifth)


@finding(
    NOTEBOOK,
    "the refit of those of least influence has {:.2f} to {:.2f} times HARP's perplexity over the "
    "three texts on SmolLM2, {:.2f} to {:.2f} times on Gemma and {:.2f} to {:.2f} times on the "
    "coder; on the news no difference is shown on Gemma",
)
def refit_of_a_fifth():
    frame = usual(HARP_TOP)
    undecided = []
    for model in MODELS:
        texts = part(frame, REFIT, "influence", model, layers=fifth(model))
        undecided += [(model, corpus) for corpus in texts.loc[texts["high"] >= 1, "corpus"]]
    assert undecided == [(GEMMA, "multi_news")]
    return spans(REFIT, "influence", HARP_TOP, fifth)


def rival(method: str, model: str, reference=None) -> pd.DataFrame:
    """A rival of the refit in the layers that HARP takes."""
    return part(usual(reference), method, "top", model, layers=fifth(model))


REFIT_TOP = {"method": REFIT, "ranking": "top", "texts": 2}


@finding(
    NOTEBOOK,
    "Least squares of full rank has the refit's perplexity to within {:.0f} % on all models and "
    "texts",
)
def full_rank():
    rows = pd.concat([rival("linear", model, REFIT_TOP) for model in MODELS])
    return [np.ceil(100 * (rows["value"] - 1).abs().max())]


@finding(
    NOTEBOOK,
    "A window is nearly as good as full attention on SmolLM2 and Gemma ({:.2f} to {:.2f} times "
    "the dense perplexity). On the coder it has {:.2f} to {:.2f} times and is ahead of the refit "
    "on the Python documentation alone",
)
def windows():
    others = pd.concat([rival("windowed", model) for model in (SMOLLM, GEMMA)])
    against_refit = rival("windowed", CODER, REFIT_TOP)
    ahead = against_refit[against_refit["high"] < 1]
    assert list(ahead["corpus"]) == ["python-docs"]
    return span(others) + span(rival("windowed", CODER))


@finding(
    NOTEBOOK,
    "Keys and values from below have {:.2f} to {:.2f} times the dense perplexity on SmolLM2 and "
    "Gemma and {:.2f} to {:.2f} times on the coder",
)
def from_below():
    others = pd.concat([rival("boundary", model) for model in (SMOLLM, GEMMA)])
    return span(others) + span(rival("boundary", CODER))


@finding(
    NOTEBOOK,
    "A fit that also sees the token before and the first one has {:.2f} to {:.2f} times the "
    "refit's perplexity on SmolLM2, but {:.2f} to {:.2f} times on Gemma, and on the coder it fails "
    "({:.0f} to {:.0f} times)",
)
def neighbours():
    return spans("neighbours", "top", REFIT_TOP, fifth)


@finding(
    NOTEBOOK,
    "The refit of the top layers is ahead of HARP, too, on SmolLM2, Gemma and the coder, but on "
    "SmolLM2 and on the coder it is far behind the refit of other layers, and on the 1.5B it is "
    "not shown to be ahead of HARP",
)
def refit_of_the_top_layers():
    frame = usual(HARP_TOP)
    to_best = usual(REFITTED)
    for model in MODELS:
        assert (part(frame, REFIT, "top", model, texts=2)["high"] < 1).all()
    on_larger = part(frame, REFIT, "top", LARGER, texts=2)
    assert (on_larger["high"] > 1).all()
    for model in (SMOLLM, CODER):
        assert (part(to_best, REFIT, "top", model, texts=2)["low"] > 1.2).all()
    return []


@finding(
    NOTEBOOK,
    "one α a layer in the layers of least influence is not shown to be ahead of HARP on any text "
    "on Gemma",
)
def alpha_alone_on_gemma():
    alphas = part(usual(HARP_TOP), "alpha-fit", "influence", GEMMA)
    assert len(alphas) == 3
    assert (alphas["high"] > 1).all()
    return []


@finding(NOTEBOOK, "block influence is not always the best ranking, but it is never the worst")
def never_the_worst():
    frame = usual()
    frame = frame[(frame["method"] == REFIT) & (frame["texts"] == 2) & (frame["corpus"] != PASSKEY)]
    compared = list(frame.groupby(["model", "layers", "corpus"]))
    assert len(compared) == 30
    for _, rankings in compared:
        by_ranking = rankings.set_index("ranking")["value"]
        assert by_ranking.idxmax() != "influence"
    return []


@finding(
    NOTEBOOK,
    "One α a layer in the layers of least influence finds {:.0f} %, {:.0f} %, {:.0f} % and, on the "
    "1.5B, {:.0f} %",
)
def keys_found_with_alphas():
    return [100 * found_keys(model)["alpha-fit", "influence"] for model in ALL_MODELS]


@finding(
    NOTEBOOK,
    "Gate-Norm's is better on the 1.5B and with half of the coder's layers, though far worse "
    "with a third of SmolLM2's and of Gemma's",
)
def choice_of_gate_norm():
    frame = usual(REFITTED)
    assert (part(frame, REFIT, "gate-norm", LARGER)["high"] < 1).all()
    halves = part(frame, REFIT, "gate-norm", CODER, layers=half(CODER))
    assert (halves["high"] < 1).all()
    for model in (SMOLLM, GEMMA):
        assert (part(frame, REFIT, "gate-norm", model)["low"] > 1.4).all()
    return []


@finding(
    NOTEBOOK,
    "in the layers that a linear map explains best, α by least squares is behind the refit of "
    "least influence on all models and texts",
)
def alphas_where_explained_best():
    frame = usual(REFITTED)
    for model in ALL_MODELS:
        alphas = part(frame, "alpha-fit", "explained", model)
        assert len(alphas) == 3
        assert (alphas["low"] > 1).all()
    return []
