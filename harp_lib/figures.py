"""Style, colours and files of every figure, and drawing them all again from stored results."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from harp_lib import (
    ablation_figures,
    ablation_tables,
    alpha_figures,
    baseline_figures,
    baseline_tables,
    efficiency_figures,
    efficiency_tables,
    longbench_figures,
    longbench_tables,
    norm_figures,
    paper_claims,
    paper_claims_figures,
    paper_claims_tables,
    paths,
    results,
    score_figures,
    score_tables,
    similarity_figures,
    tables,
    theory_figures,
    theory_tables,
)
from harp_lib.experiments import (
    ablation_study,
    alpha_study,
    baseline_study,
    efficiency_study,
    norm_study,
    score_study,
    similarity_study,
    theory_study,
)

FORMATS = ("png", "pdf", "svg")
EXPERIMENTS = {  # the figures and the tables of each
    theory_study.EXPERIMENT: (theory_figures.all_figures, theory_tables.theory_tables),
    similarity_study.EXPERIMENT: (similarity_figures.all_figures, theory_tables.similarity_tables),
    norm_study.EXPERIMENT: (norm_figures.all_figures, theory_tables.norm_tables),
    alpha_study.EXPERIMENT: (alpha_figures.all_figures, tables.alpha_tables),
    baseline_study.EXPERIMENT: (baseline_figures.all_figures, baseline_tables.baseline_tables),
    score_study.EXPERIMENT: (score_figures.all_figures, score_tables.score_tables),
    ablation_study.EXPERIMENT: (ablation_figures.all_figures, ablation_tables.ablation_tables),
    score_study.LONGBENCH: (longbench_figures.all_figures, longbench_tables.longbench_tables),
    efficiency_study.EXPERIMENT: (efficiency_figures.all_figures, efficiency_tables.efficiency_tables),
}


def use_style() -> None:
    """Set the look that all figures share."""
    sns.set_theme(context="notebook", style="ticks", palette="colorblind", font_scale=0.9)
    mpl.rcParams |= {
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
        "savefig.dpi": 160,
        "svg.hashsalt": "harp",  # equal figures are equal files
    }


def save(figure: Figure, name: str, profile: str) -> list[Path]:
    """Write a figure to ``figures/<profile>/`` as png, pdf and svg.

    Returns
    -------
    list of Path
        The files.
    """
    folder = paths.FIGURES / profile
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"{name}.{ending}" for ending in FORMATS]
    for file in written:
        undated = {"CreationDate": None} if file.suffix == ".pdf" else {"Date": None} if file.suffix == ".svg" else None
        figure.savefig(file, metadata=undated)
        figure.set_layout_engine("none")  # laid out once, the same in every format
    return written


def redraw(profile: str) -> list[Path]:
    """Draw every figure and table again from stored results, without a model.

    Returns
    -------
    list of Path
        The files that were written.

    Raises
    ------
    FileNotFoundError
        If nothing is stored for the profile, or a result of a finished run is gone.
    """
    use_style()
    found = [experiment for experiment in EXPERIMENTS if results.has_results(profile, experiment)]
    stored = {experiment: results.read_results(profile, experiment) for experiment in found or EXPERIMENTS}
    written = []
    for experiment, cells in stored.items():
        all_figures, all_tables = EXPERIMENTS[experiment]
        for name, figure in all_figures(cells):
            written += save(figure, name, profile)
            plt.close(figure)
        for table, name, numbers in all_tables(cells):
            written += tables.save(table, name, profile, numbers)
    if {theory_study.EXPERIMENT, norm_study.EXPERIMENT} <= set(stored):
        theory, norms = stored[theory_study.EXPERIMENT], stored[norm_study.EXPERIMENT]
        verdict = theory_tables.full_verdict(theory, stored.get(similarity_study.EXPERIMENT, {}), norms)
        written += tables.save(verdict, "theory_verdict", profile)
    known = paper_claims.read_stored(profile)
    judged = paper_claims.judge(profile, known)  # last, since it names the files that show a claim
    written += save(paper_claims_figures.verdicts(judged, paper_claims_tables.titles(known)), "claims", profile)
    plt.close()
    written += tables.save(paper_claims_tables.claim_table(judged), "claims", profile, judged)
    return written
