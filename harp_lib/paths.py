"""Where the companion keeps things: one checkout, or the folder that ``HARP_ROOT`` names."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("HARP_ROOT") or Path(__file__).resolve().parents[1])
DATA = ROOT / "data"
CONFIGS = DATA / "configs"
MODELS = DATA / "models"
PAPER = DATA / "paper"
PROFILES = DATA / "profiles"
RESULTS = DATA / "results"
REFERENCE = DATA / "reference"
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
