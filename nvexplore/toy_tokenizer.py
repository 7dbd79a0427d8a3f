"""A byte tokenizer as Hugging Face files: token id = byte, and a few special tokens after the 256 bytes.

Any text comes back exactly as it went in; no token is added in front. It knows the file formats, not any
model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

NUM_BYTES: Final = 256
END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
# Reserved ones fill up to a multiple of 16, which splits evenly over 2, 4, 8 or 16 ranks.
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END, *(f"<|reserved_{i}|>" for i in range(13)))
VOCAB_SIZE: Final = NUM_BYTES + len(SPECIAL_TOKENS)

PAD_TOKEN_ID: Final = NUM_BYTES + SPECIAL_TOKENS.index(END_OF_TEXT)
EOS_TOKEN_ID: Final = NUM_BYTES + SPECIAL_TOKENS.index(TURN_END)

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_byte_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into the existing `folder`; AutoTokenizer loads them."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": NUM_BYTES + i,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, token in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        # BPE without merges: every byte stays a token of its own.
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {
                **_byte_characters(),
                **{token: NUM_BYTES + i for i, token in enumerate(SPECIAL_TOKENS)},
            },
            "merges": [],
        },
    }
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 1 << 30,
        "clean_up_tokenization_spaces": False,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    for name, content in (("tokenizer.json", tokenizer), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _byte_characters() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary, with the byte.

    GPT-2's rule: printable Latin-1 characters stand for themselves, the other bytes, in order, are the
    characters from U+0100 on.
    """
    own = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("\xa1"), ord("\xac") + 1),
        *range(ord("\xae"), NUM_BYTES),
    ]
    others = [byte for byte in range(NUM_BYTES) if byte not in own]
    characters = {byte: chr(byte) for byte in own} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    return {characters[byte]: byte for byte in range(NUM_BYTES)}
