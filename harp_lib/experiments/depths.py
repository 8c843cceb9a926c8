"""How many layers can go: methods at several depths beside the profile's own, for notebook 05."""

from dataclasses import replace

from harp_lib.experiments.job import HELD_OUT, SEARCHED, Job
from harp_lib.experiments.plans import Setting, by_lowest_layer, make_plans
from harp_lib.experiments.scores import score
from harp_lib.experiments.search import search_cell
from harp_lib.names import BASELINES, HARP, HARP_FLAP


def depths(job: Job) -> None:
    """Plans, perplexities and scores of each method with heads removed from fewer and more layers.

    Baselines are tuned anew for each number of layers, and lose as many heads as so many layers
    have. At the profile's own number the cells of notebooks 04 and 05 are those of this one, too.
    """
    settings = job.profile["depths"]
    counts = settings["layers"].get(job.name, [])
    others = [count for count in counts if count != job.num_pruned]
    if not others:
        return
    # One search: of a greedy search to fewer layers the alphas are the first ones.
    corpus = job.corpora[0]
    job.result(search_cell(job, HARP, job.text(corpus, SEARCHED), max(counts)))
    for count in others:
        methods = [HARP, HARP_FLAP]
        if count in settings["baselines"].get(job.name, []):
            methods = [*BASELINES, *methods]
        _at(replace(job, depth=count), methods, settings["tasks"].get(job.name, []))


def _at(job: Job, methods: list[str], tasks: list[str]) -> None:
    """The cells of one depth."""
    make_plans(Setting(job), methods)
    plans = {method: job.plan(method) for method in methods}
    for corpus in job.corpora:
        text = job.text(corpus, HELD_OUT)
        cells = []
        for method in by_lowest_layer(plans):
            inputs = text.inputs | job.plan_inputs(plans[method])
            cells.append(text.nll_cell(method, inputs, plans[method]))
        job.results(f"perplexities, {job.depth} layers, {corpus}", cells)
    score(job, tasks, plans)
