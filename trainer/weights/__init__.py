"""Weights in and out: published files, our checkpoints, MaxText's trees.

::

    names.py              published tensor names, their axes, and where our tree has them
    matching.py           found tensors against expected ones; every difference is named
    casting.py            dtypes, rows of the vocabulary, values that do not survive
    huggingface.py        config.json <-> Olmo3Config
    safetensors_files.py  shards, read as memory maps
    shard_writer.py       shards, written tensor by tensor
    orbax_tree.py         the one file here that knows Orbax
    maxtext.py            MaxText's tree <-> published names
    source.py             weights of one model, whatever form they are stored in
    orbax_sources.py      checkpoints of our runs, of MaxText, of other trainers as sources
    sources.py            what a folder is
    targets.py            a result in one of three forms, written tensor by tensor
    verify.py             a result read back and compared with what was written
    provenance.py         where weights are from
    convert.py            all of it: the command's body
    summary.py            its result in a few lines
    progress.py           by bytes, on standard error
    json_files.py         JSON objects in files

Between reading and writing, a tensor has its published name and its published orientation
(matrices [outputs, inputs]). One tensor is in memory at a time, or one of MaxText's stacks.
"""
