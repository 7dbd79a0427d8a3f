"""An LLM without a model, and a shell to run magics in: for the tests of the notebook side.

The fake LLM is the real engine over the toy runner of tests/fakes.py, so its records are real and it needs no torch.
"""

from __future__ import annotations

import atexit
import contextlib
import io
from typing import Any, ClassVar

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nvexplore.config import EngineConfig
from nvexplore.engine.engine import Engine
from nvexplore.engine.events import Planned, StepRecord
from nvexplore.engine.limits import EngineLimits
from nvexplore.engine.sequence import Sequence
from nvexplore.generation import advance
from nvexplore.sampling_params import SamplingParams
from tests.fakes import ToyRunner
from tests.toy_device import ToyDevice

TEMPLATE = "<user>{}<assistant>"


class FakeTokenizer:
    """One token a byte of UTF-8; what the toy model says beyond that is shown as letters."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return f"<0x{token_id:02X}>"

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return bytes(i if i < 256 else 97 + i % 26 for i in token_ids).decode("utf-8", "replace")


class FakeLLM:
    """What the notebook side uses of ``nvexplore.LLM``, with its options. made: every instance, in order of birth."""

    made: ClassVar[list[FakeLLM]] = []

    def __init__(self, model: str = "demo", **options: Any) -> None:
        self.check(model, **options)
        interrupt = options.pop("interrupt", None)
        self.config = EngineConfig.of(**options)
        num_blocks = options.get("num_kvcache_blocks", 64)
        asked = {name: value for name, value in options.items() if name in EngineLimits.__dataclass_fields__}
        limits = EngineLimits(**{"num_blocks": num_blocks, "block_size": 4, "max_num_batched_tokens": 16, **asked})
        self.model, self.tokenizer = model, FakeTokenizer()
        overlap = bool(self.config.overlap)
        runner = (ToyDevice if overlap else ToyRunner)(num_blocks, limits.block_size, interrupt)
        self._engine: Engine | None = Engine(limits, runner, vocab_size=997, overlap=overlap)
        self.others_alive = [llm.model for llm in self.made if not llm.is_closed]
        self.made.append(self)

    @staticmethod
    def check(model: str, **options: Any) -> None:
        EngineConfig.of(**{name: value for name, value in options.items() if name != "interrupt"})
        if model == "nowhere":
            raise FileNotFoundError("no model at 'nowhere'\nlook elsewhere")

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        return self._engine

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    def add_request(
        self,
        prompt: str | list[int],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> Sequence:
        tokens = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return self.engine.add_request(tokens, sampling_params, request_id=request_id, priority=priority)

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        return self.tokenizer.encode(TEMPLATE.format(messages[0]["content"]))

    def abort(self, request_id: str) -> bool:
        return self.engine.abort(request_id)

    def plan(self) -> Planned:
        return self.engine.plan()

    def step(self) -> StepRecord:
        record = self.engine.step(want_record=True).record
        assert record is not None
        return record

    def advance(self) -> None:
        advance(self.engine)

    def settle(self) -> None:
        self.engine.settle()

    def close(self) -> None:
        self._engine = None


class Shell:
    """A real IPython shell; ``run`` raises what the cell raised and returns the value of its last line."""

    def __init__(self, folder: str) -> None:
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.ipython_dir = folder
        self.ip = InteractiveShell.instance(config=config)
        self.shown = ""

    def run(self, *cells: str) -> Any:
        result: Any = None
        for cell in cells:
            shown = io.StringIO()
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                result = self.ip.run_cell(cell, store_history=True)
            self.shown = shown.getvalue()
            result.raise_error()
        return result.result

    def __getitem__(self, name: str) -> Any:
        return self.ip.user_ns[name]

    def close(self) -> None:
        self.ip.atexit_operations()
        atexit.unregister(self.ip.atexit_operations)
        InteractiveShell.clear_instance()
