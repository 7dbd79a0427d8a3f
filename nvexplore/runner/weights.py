"""Loads safetensors checkpoints strictly: every tensor of the model exactly once, or an error that names it.

Knows files and names; where a tensor goes and which part of it, the model says (``CausalLM.pieces``).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nvexplore.layers.parameter import Piece
from nvexplore.models.decoder import CausalLM

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)

INDEX_FILE: Final = "model.safetensors.index.json"
SINGLE_FILE: Final = "model.safetensors"
# Tensors that some checkpoints hold and that are worked out, not learned.
_KNOWN_BUFFERS: Final = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
_FLOATS: Final = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class WeightsError(ValueError):
    """A checkpoint does not hold exactly the model's tensors; the message names tensor, file and shapes."""


def load_weights(model: CausalLM, path: str | Path, progress: Progress | None = None) -> None:
    """Fill every parameter of ``model`` from the checkpoint in the folder ``path``, cast to its dtype.

    Where there is an index it decides, tensor by tensor, which file is read; other files are not opened.
    Files are memory-mapped. Experts may lie there one by one or stacked. ``progress`` is called with (bytes
    filled, bytes in all) of this rank's parameters, the first time with 0. Raises WeightsError.
    """
    files = _files_of(Path(path))
    names = {name for names in files.values() for name in names if not _KNOWN_BUFFERS.search(name)}
    pieces = _match(list(model.pieces()), names, Path(path))
    tied: list[tuple[Piece, Tensor, Path]] = []
    done, total = 0, sum(piece.target.nbytes for group in pieces.values() for piece in group if not piece.is_tied)
    if progress is not None:
        progress(0, total)
    for file, tensor_names in files.items():
        # safetensors makes what it reads where torch's default device is.
        with torch.device("cpu"), _open(file) as opened:
            for name in tensor_names:
                for piece in pieces.get(name, ()):
                    values = _read(opened, name, piece, file)
                    if piece.is_tied:
                        tied.append((piece, values, file))
                        continue
                    piece.target.copy_(values)
                    done += piece.target.nbytes
                    if progress is not None:
                        progress(done, total)
    _check_finite(model, Path(path))
    for piece, values, file in tied:
        if not torch.equal(values.to(piece.target), piece.target):
            warnings.warn(
                f"{piece.name} in {file} is not used: it differs from the embedding, to which it is tied",
                stacklevel=2,
            )


def _files_of(folder: Path) -> dict[Path, list[str]]:
    """Return which tensors are read from which file: what the index assigns, or all of the only file."""
    index = folder / INDEX_FILE
    single = folder / SINGLE_FILE
    if index.exists():
        files = _files_of_index(index)
        if single.exists() and single not in files:
            warnings.warn(
                f"{single} is not used: {INDEX_FILE} beside it assigns every tensor to other files. If these are left "
                "from another model, delete the index",
                stacklevel=3,
            )
        return files
    if not single.exists():
        found = ", ".join(sorted(file.name for file in folder.glob("*"))) if folder.is_dir() else "no such folder"
        raise WeightsError(f"{folder} has neither {INDEX_FILE} nor {SINGLE_FILE} (found: {found})")
    with _open(single) as opened:
        return {single: list(opened.keys())}


def _files_of_index(index: Path) -> dict[Path, list[str]]:
    try:
        weight_map = _parse(index.read_text(encoding="utf-8"), index)["weight_map"]
        files: dict[Path, list[str]] = {}
        for name, file in weight_map.items():
            if Path(file).name != file:
                raise WeightsError(f"{index}: {name} is assigned to {file!r}, which is not a file beside it")
            files.setdefault(index.parent / file, []).append(name)
    except WeightsError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} is not a valid index: {error!r}") from None
    for path, names in files.items():
        if not path.exists():
            raise WeightsError(f"{path} is missing; {index.name} assigns {len(names)} tensors to it ({names[0]}, ...)")
        with _open(path) as opened:
            absent = sorted(set(names) - set(opened.keys()))
        if absent:
            raise WeightsError(f"{path} does not hold {', '.join(absent)}, which {index.name} assigns to it")
    return files


def _parse(text: str | bytes, file: Path) -> Any:
    """Parse JSON in which no name stands twice; the usual parsers take the last and say nothing."""

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for name, value in pairs:
            if name in seen:
                raise WeightsError(f"{file} assigns {name} twice: to {seen[name]} and to {value}")
            seen[name] = value
        return seen

    return json.loads(text, object_pairs_hook=refuse_twice)


def _open(file: Path) -> Any:
    try:
        opened = safe_open(file, framework="pt", device="cpu")
        with file.open("rb") as raw:
            _parse(raw.read(int.from_bytes(raw.read(8), "little")), file)
        return opened
    except (SafetensorError, OSError) as error:
        if not file.is_file():
            raise WeightsError(f"{file} is not a file") from None
        size = file.stat().st_size
        with file.open("rb") as raw:
            pointer = raw.read(40).startswith(b"version https://git-lfs")
        hint = "it is a Git LFS pointer, not the file itself" if pointer else "truncated or corrupt"
        raise WeightsError(f"{file} ({size:,} bytes) is not a readable safetensors file, {hint}: {error}") from None


def _match(pieces: list[Piece], names: set[str], folder: Path) -> dict[str, list[Piece]]:
    """Return which pieces each tensor fills; a WeightsError names all that are missing, left over or double."""
    sources: dict[str, list[Piece]] = {}
    missing, double = [], []
    for piece in pieces:
        stacked = piece.stack is not None and piece.stack.name in names
        if piece.name in names and stacked:
            double.append(piece.name)
        elif piece.stack is not None and stacked:
            sources.setdefault(piece.stack.name, []).append(piece)
        elif piece.name in names:
            sources.setdefault(piece.name, []).append(piece)
        elif not piece.is_tied:
            missing.append(piece.name)
    extra = sorted(names - set(sources) - set(double))
    problems = []
    if missing:
        problems.append(f"{_listed(missing)} missing")
    if double:
        problems.append(f"{_listed(double)} there twice, by itself and stacked with others")
    if extra and not double:
        problems.append(f"{_listed(extra)} not part of the model")
    if problems:
        raise WeightsError(f"{folder}: {'; '.join(problems)}")
    return sources


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _read(opened: Any, name: str, piece: Piece, file: Path) -> Tensor:
    """Return what ``piece`` takes of the tensor ``name``; only that part of the file is read."""
    whole, stack = opened.get_slice(name), piece.stack if name != piece.name else None
    shape, needed = tuple(whole.get_shape()), piece.shape if stack is None else stack.shape
    if shape != needed:
        raise WeightsError(f"{name} in {file} has shape {list(shape)}, the model needs {list(needed)}")
    first = piece.start + (stack.row if stack is not None and piece.dim == 0 else 0)
    part = slice(first, first + piece.target.shape[piece.dim])
    where = (part,) if piece.dim == 0 else (slice(None), part)
    try:
        values: Tensor = whole[where if stack is None else (stack.entry, *where)]
    except SafetensorError as error:
        raise WeightsError(f"{name} in {file} cannot be read: {error}") from None
    if values.dtype not in _FLOATS:
        raise WeightsError(f"{name} in {file} is {values.dtype}: quantised weights are not supported")
    return values


def _check_finite(model: CausalLM, folder: Path) -> None:
    # Parameters are made full of NaN, so one that nothing was written to shows here too.
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise WeightsError(
                f"{name} is not finite after loading {folder} as {parameter.dtype}: never written, or NaN or "
                "infinite in the file or in that dtype"
            )
