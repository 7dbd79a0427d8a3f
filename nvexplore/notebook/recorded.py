"""A recording in the place of an engine: views that look at what a file holds, and the session's way to files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvexplore.explore.recording import Recording, load_recording, save_recording
from nvexplore.explore.token_texts import TokenTexts
from nvexplore.notebook.display import Display, explorer_of
from nvexplore.notebook.requests import Decode, Decoder, RequestLog
from nvexplore.notebook.summary import Summary, counted

if TYPE_CHECKING:
    from nvexplore.explore.recorder import Recorder
    from nvexplore.llm import LLM
    from nvexplore.notebook.explorer import Explorer


class RecordedDisplay(Display):
    """Views of a recording; there is nothing to run, so they have no buttons."""

    def __init__(self, recording: Recording, log: RequestLog) -> None:
        self.recording, self._log = recording, log
        self._explorer = self._subscription = None

    @property
    def explorer(self) -> Explorer:
        """Made at the first call, with all steps that are recorded."""
        if self._explorer is None:
            from nvexplore.runner.memory_ledger import MemoryLedger

            recording = self.recording
            memory = None if recording.memory is None else MemoryLedger(**recording.memory)
            decode = None if recording.decode is None else self._log.text
            self._explorer = explorer_of(recording.recorder, decode, memory)
        return self._explorer

    def refresh(self) -> None:
        """Nothing happens in a recording."""


def save(
    recorder: Recorder,
    path: str | Path,
    text: Decode,
    memory: dict[str, Any] | None,
    model: str,
    *,
    replace: bool,
    redact: bool,
) -> Summary:
    """``Session.save``; text: how the session reads tokens, which may outlive its model."""
    token_bytes: Callable[[int], bytes] | None = None
    if isinstance(text, Decoder):
        from nvexplore.text.token_bytes import TokenBytes

        token_bytes = TokenBytes(text.tokenizer, text)
    elif isinstance(text, TokenTexts):
        token_bytes = text.token_bytes
    file = save_recording(
        recorder, path, model=model, token_bytes=token_bytes, memory=memory, replace=replace, redact=redact
    )
    holds = "the prompts and completions of its requests"
    if redact:
        holds = "no word of its requests: token ids are numbers that tell which of them begin alike"
    return Summary(
        headline=f"{file}: {counted(len(recorder), 'step')}, {file.stat().st_size:,} bytes",
        notes=(*_gaps(recorder), f"it holds {holds}"),
    )


def ledger_of(display: Display | None, llm: LLM | None) -> dict[str, Any] | None:
    """The memory ledger of what a session looks at, as a recording has it."""
    if isinstance(display, RecordedDisplay):
        return display.recording.memory
    ledger = None if llm is None or llm.is_closed else getattr(llm.engine.runner, "memory", None)
    return None if ledger is None else asdict(ledger)


def is_redacted(display: Display | None) -> bool:
    """Whether what a session looks at is a recording that was redacted: no word of it can come back."""
    return isinstance(display, RecordedDisplay) and display.recording.redacted


def load(path: str | Path) -> tuple[Recording, RequestLog]:
    """A file's recording, and its requests."""
    recording = load_recording(path)
    log = RequestLog(recording.decode) if recording.decode is not None else RequestLog()
    log.finished.keeps_all = True  # there are no more than the file has
    for snapshot, records in recording.recorder.segments:
        log.push(snapshot)
        for record in records:
            log.push(record)
    return recording, log


def opened(path: str | Path, recording: Recording, log: RequestLog) -> Summary:
    """What was opened, in words."""
    recorder = recording.recorder
    steps = counted(len(recorder), "step")
    where = "" if recorder.first_step is None else f" ({recorder.first_step} to {recorder.last_step})"
    return Summary(
        headline=f"{path}: {steps}{where} of {recording.model or 'an engine'}, saved {recording.created}",
        notes=(
            f"{counted(log.num_blocks, 'KV block')} of {log.block_size} tokens, {counted(len(log.table), 'request')}",
            *_gaps(recorder),
            *_texts(recording),
        ),
    )


def _texts(recording: Recording) -> list[str]:
    if recording.redacted:
        return ["what its requests say was taken out: token ids are numbers that tell which of them begin alike"]
    return [] if recording.decode is not None else ["token ids stand where texts would: they were not saved"]


def _gaps(recorder: Recorder) -> list[str]:
    stretches = ", ".join(f"{first} to {last}" for first, last in recorder.gaps)
    return [f"steps that nobody recorded: {stretches}"] if stretches else []
