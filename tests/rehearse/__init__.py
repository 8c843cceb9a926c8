"""A rehearsal of the profile ``paper``, without a GPU and without the hub.

``./run_all.sh --profile paper --rehearse`` is the run itself, in a folder of its own, with tiny
random models and made-up rows from a double of the hub. ``FOLDER/hub/faults.json`` makes the double
misbehave (hub_server.py); with ``--executor slurm`` there is a double of Slurm, too (slurm.py).
"""
