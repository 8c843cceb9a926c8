"""One file per experiment: what its cells are and how a cell is computed."""
