"""What a plan does to a model; all but ``surgery.py`` ships inside every saved checkpoint.

HARP itself is some 70 lines of code in three files:

- ``LoneAttention`` in ``layers.py``: attention without queries and keys, ``H W_V W_O``;
- ``fold_alpha`` in ``surgery.py``: its rescaling by alpha, in the weights;
- ``greedy_search`` in ``../methods/alpha_search.py``: Algorithm 1, which chooses alpha.

Of the rest, ``plan.py`` says what goes, ``surgery.py`` and ``swap.py`` carry it out,
``architecture.py`` refuses models that would compute something else, ``generation.py`` and
``remote.py`` make the pruned model one of transformers, and ``layers.py`` also slices heads and
channels for the other methods.
"""
