"""The command that makes token files of others usable where they lie."""

import json
from pathlib import Path
from typing import Any

import click

__all__ = ["index_command"]

_PATH = click.Path(path_type=Path)


@click.command("index")
@click.argument("manifest", type=_PATH)
@click.option("--root", required=True, help="Folder or address that the paths start from.")
@click.option("--tokenizer", required=True, help="Takes the place of {TOKENIZER} in the paths.")
@click.option("--tokenizer-file", type=_PATH, help="Its file; without, text cannot be scored.")
@click.option("--out", required=True, type=_PATH, help="Token folder to make.")
@click.option("--vocab-size", type=int, help="By default what the tokenizer has.")
@click.option("--eos-id", type=int, help="By default what the tokenizer has.")
@click.option(
    "--sample/--whole",
    default=None,
    help="Read head, middle and tail of each file or all; by default all up to 4 GiB together.",
)
def index_command(out: Path, *, sample: bool | None, **options: Any) -> None:
    """Make a token folder of the files that MANIFEST names (label,relative/path.npy a line).

    They stay where they lie, on this machine or anywhere fsspec reads from.
    """
    from trainer.data.manifest import IndexRequest, index_manifest, repeated

    whole = None if sample is None else not sample
    folder = index_manifest(IndexRequest(whole=whole, **options), out)
    for text in folder.warnings:
        click.echo(f"warning: {text}", err=True)
    twice = repeated(folder)
    if twice:
        click.echo(
            f"warning: {len(twice)} files are named more than once, {twice[0]} first: each pass "
            "reads their text as often",
            err=True,
        )
    facts = {
        "out": str(out),
        "vocab_size": folder.vocab_size,
        "eos_id": folder.eos_id,
        "files": len(folder.files),
        "tokens": sum(file.n_tokens for file in folder.files),
        "whole": all(file.sha256 is not None for file in folder.files),
        "fingerprint": folder.fingerprint,
    }
    click.echo(json.dumps(facts))
