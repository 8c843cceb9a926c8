"""Style, colours and files of every figure, and drawing them all again from stored results."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.figure import Figure

from . import alpha_figures, alpha_study, paths, results, tables

FORMATS = ("pdf", "png", "svg")


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
    """Write a figure to ``figures/<profile>/`` as pdf, png and svg.

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
        If nothing is stored for the profile.
    """
    use_style()
    cells = results.read_results(profile, alpha_study.EXPERIMENT)
    written = []
    for name, figure in alpha_figures.all_figures(cells):
        written += save(figure, name, profile)
        plt.close(figure)
    for table, name, numbers in tables.alpha_tables(cells):
        written += tables.save(table, name, profile, numbers)
    return written
