"""Prompts exactly as they were typed: what IPython would do to the text of a line magic is kept from it.

IPython rewrites a cell before it looks for magics: ``%nvx_add Who was she?`` would ask for help on ``she``, spaces at
the end would go, a backslash would join the next line. ``PromptLines`` turns such lines into the Python call they
stand for first. ``split`` then takes the options off the head of a line and leaves the rest as it is.
"""

from __future__ import annotations

import io
import re
import tokenize

# The options of %nvx_add that take no value; every other one takes the next word.
FLAGS = frozenset({"--chat", "--ignore-eos", "--each-line", "--each-paragraph"})
_LINE = re.compile(r"^(?P<before>[ \t]*(?:[^\W\d]\w*[ \t]*=[ \t]*)?)%nvx_add[ \t]+(?P<text>\S.*)$")
# Quotes hold a word together, as in a shell; one that nobody closes is a letter.
_WORD = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|\S)+)""")


class PromptLines:
    """An input transformer: ``%nvx_add text`` becomes a call that carries ``text`` as a string."""

    def __call__(self, lines: list[str]) -> list[str]:
        if lines and lines[0].startswith("%%"):  # a cell magic: its body is not ours
            return lines
        done: list[str] = []
        for line in lines:
            found = _LINE.match(line.rstrip("\r\n"))
            if found and not _inside_string(done):
                line = f"{found['before']}get_ipython().run_line_magic('nvx_add', {found['text']!r})\n"
            done.append(line)
        return done


def split(line: str) -> tuple[str, str]:
    """(options, prompt) of a line: the prompt starts at the first word that is no option, or after ``--``.

    Values of options may stand in quotes, as ``--id 'a b'``.
    """
    end, value_next = 0, False
    for word in _WORD.finditer(line):
        text = word[1]
        if value_next:
            value_next = False
        elif text == "--":
            rest = line[word.end() :]
            return line[:end], rest[1:] if rest[:1].isspace() else rest
        elif text.startswith("-") and len(text) > 1:
            value_next = "=" not in text and text not in FLAGS
        else:
            return line[:end], line[word.start(1) :]
        end = word.end()
    return line, ""


def pieces(body: str, *, each_line: bool = False, each_paragraph: bool = False) -> list[str]:
    """The prompts in a cell's body: all of it without its last line end, or its lines, or its paragraphs."""
    body = body.removesuffix("\n")
    if each_line:
        return [line for line in body.split("\n") if line.strip()]
    if each_paragraph:
        return [part.strip("\n") for part in re.split(r"\n[ \t]*\n", body) if part.strip()]
    return [body]


def _inside_string(lines: list[str]) -> bool:
    """Whether a triple-quoted string is open after ``lines``."""
    try:
        for _ in tokenize.generate_tokens(io.StringIO("".join(lines)).readline):
            pass
    except tokenize.TokenError as error:
        return "multi-line string" in str(error) or "triple-quoted" in str(error)
    except (SyntaxError, IndentationError):
        pass
    return False
