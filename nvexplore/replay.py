"""``nvexplore replay`` and ``nvexplore compare``: what recordings tell, in a terminal, as pictures and as tables."""

from __future__ import annotations

import argparse
import os
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.command_error import CommandError
from nvexplore.whole_file import user_path, write_whole

if TYPE_CHECKING:
    from nvexplore.explore.recorder import Recorder


def add_command(commands: Any) -> None:
    """Add the commands to the parsers of the whole program."""
    command = commands.add_parser("replay", help="look at a recording that was saved", description=replay.__doc__)
    command.add_argument("file", type=Path, help="what %%nvx_save or Session.save has written")
    command.add_argument("--step", type=int, metavar="N", help="explain this step")
    command.add_argument(
        "--plots", type=Path, metavar="DIR", help="write memory, throughput and schedule there, as PNG, over old ones"
    )
    command.add_argument(
        "--csv", type=Path, metavar="DIR", help="write the frames there, over old ones; blocks and slots after --step"
    )
    command.add_argument("--trace", type=Path, metavar="FILE", help="write a trace there, for ui.perfetto.dev")
    command.add_argument("--redact", type=Path, metavar="FILE", help="write it there without what its requests say")
    command.add_argument("--replace", action="store_true", help="write over the files of --trace and --redact")
    command.set_defaults(run=replay)
    command = commands.add_parser("compare", help="recordings side by side", description=compare_files.__doc__)
    command.add_argument("files", type=Path, nargs="+", help="what %%nvx_save or Session.save has written")
    command.set_defaults(run=compare_files)


def replay(args: argparse.Namespace) -> int:
    """Say what a recording holds. Needs no model, GPU or torch; %nvx_open shows it in a notebook."""
    from nvexplore.explore.explain import explain
    from nvexplore.explore.recording import save_recording
    from nvexplore.explore.trace import write_trace
    from nvexplore.notebook.recorded import load, opened

    try:
        _look_at_targets(args)
        recording, log = load(args.file)
        recorder = recording.recorder
        print(opened(args.file, recording, log))
        if args.step is None:
            print(log.table)
        else:
            print(explain(recorder, args.step))
        for folder in filter(None, (args.plots, args.csv)):
            folder.mkdir(parents=True, exist_ok=True)
        if args.plots is not None:
            _write_plots(recorder, args.plots)
        if args.csv is not None:
            _write_frames(recorder, args.csv, args.step)
        if args.trace is not None:
            print(f"wrote {write_trace(recorder, args.trace, replace=args.replace)}")
        if args.redact is not None:
            how = {"memory": recording.memory, "redact": True, "replace": args.replace}
            file = save_recording(recorder, args.redact, model=recording.model, **how)
            print(f"wrote {file}")
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from None
    return 0


def _look_at_targets(args: argparse.Namespace) -> None:
    """CommandError where a file to write is the recording itself, which no --replace means, or two of them are one."""
    from nvexplore.explore.recording import path_to_load, path_to_save
    from nvexplore.notebook.figure import FRAMES, PLOTS

    source = path_to_load(args.file)
    targets = [("--plots", args.plots / f"{name}.png") for name in (PLOTS if args.plots else ())]
    targets += [("--csv", args.csv / f"{name}.csv") for name in (FRAMES if args.csv else ())]
    targets += [("--trace", user_path(args.trace))] if args.trace else []
    targets += [("--redact", path_to_save(args.redact))] if args.redact else []
    taken: dict[str, str] = {}
    for flag, file in targets:
        if file.exists() and source.exists() and file.samefile(source):
            raise CommandError(f"{flag} {file}: this is the recording itself; give another file")
        if other := taken.get(os.path.realpath(file)):
            raise CommandError(f"{other} and {flag} would both write {file}")
        taken[os.path.realpath(file)] = flag


def _write_plots(recorder: Recorder, folder: Path) -> None:
    from nvexplore.notebook.figure import PLOTS, plot

    for name in PLOTS:
        picture = BytesIO()
        plot(recorder, name).savefig(picture, format="png", dpi=150)
        print(f"wrote {write_whole(folder / f'{name}.png', picture.getvalue(), replace=True)}")


def _write_frames(recorder: Recorder, folder: Path, step: int | None) -> None:
    from nvexplore.notebook.figure import FRAMES, OF_ONE_STEP, frame

    for name in FRAMES:
        table = frame(recorder, name, step if name in OF_ONE_STEP else None).to_csv(index=False)
        print(f"wrote {write_whole(folder / f'{name}.csv', table, replace=True)}")


def compare_files(args: argparse.Namespace) -> int:
    """Put the figures of recordings side by side: of the same requests under another policy, pool or budget."""
    from nvexplore.explore.compare import compare
    from nvexplore.explore.recording import load_recording
    from nvexplore.notebook.summary import Summary, counted

    recorders: dict[str, Recorder] = {}
    try:
        for file in args.files:
            number, name = 1, str(file)
            while name in recorders:  # a file that is named twice gets two columns
                number += 1
                name = f"{file} ({number})"
            recorders[name] = load_recording(file).recorder
        table = compare(recorders)
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from None
    rows = [(str(figure), *map(_short, row)) for figure, *row in table.itertuples()]
    print(Summary(headline=counted(len(recorders), "recording"), columns=("", *recorders), rows=tuple(rows)))
    return 0


def _short(value: float) -> str:
    if value != value:
        return "-"
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.3f}"
