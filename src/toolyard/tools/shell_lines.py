"""Splits a shell script into the pieces that a shell reads before it runs something. Runs nothing.

It knows quotes, expansions, here-documents, compound commands and functions of bash; not aliases, which only a shell
knows. A piece with wrong syntax ends with its line, and bash reports the error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_TRIES = 10
"""How often a text after `((` may turn out to be no arithmetic, which costs a second reading."""

_BLANK = re.compile(r"(?:[ \t]|\\\n)*")
_PLAIN = re.compile(r"[^ \t\n\\'\"`$;&|<>()]+")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&>>|&>|&|\|\||\|&|\||<<<|<<-|<<|<&|<>|<|>>|>&|>\||>|\(|\)")
_REDIRECTIONS = frozenset({"<<<", "<&", "<>", "<", ">>", ">&", ">|", ">", "&>>", "&>"})
_ENDS_COMMAND = frozenset({";", "&", "&&", "||", "|", "|&"})
_WANTS_MORE = frozenset({"&&", "||", "|", "|&"})
_ORDINARY = {True: re.compile(r"[^\\\"`$}]+"), False: re.compile(r"[^\\\"'`$}]+")}
"""Characters without a special meaning, inside double quotes and in braces outside of them."""
_BACKTICKED = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL)
_ANSI_QUOTED = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^\]]*\])?\+?=")
_FUNCTION = re.compile(r"\([ \t]*\)")
_QUOTING = re.compile(r"\\(.)|\$(?=['\"])|['\"]", re.DOTALL)


def commands(script: str) -> list[str]:
    """The complete commands, or lists of them, each with its lines and without the last line end; a blank line
    counts."""
    if "\n" not in script:
        return [script]
    reader = _Reader(script)
    found = []
    at = 0
    while at < len(script):
        end = reader.command(at)
        found.append(script[at:end].removesuffix("\n"))
        at = end
    return found


class _Incomplete(Exception):
    """The script ends before the command does."""


class _Wrong(Exception):
    """Wrong syntax, after which no shell reads on."""

    def __init__(self, at: int) -> None:
        self.at = at


@dataclass(slots=True)
class _Block:
    """An open construct: the script itself, a substitution, or a compound command."""

    kind: str
    """`script`, `(`, `{`, `if`, `loop` or `case`."""
    part: str = ""
    """Of a loop: `name`, `words`, `head` or `body`; of an if: `head` or `body`; of a case: `patterns` or `body`."""
    fresh: bool = True
    """A command may begin here, so words such as `if` are keywords."""
    words: int = 0
    """How many words the current command has."""
    wanted: bool = False
    """The line cannot end here: a command must follow."""
    bare: bool = True
    """An operator is not allowed yet: it has nothing to end."""
    empty: bool = True
    """There is no command yet in this part of it."""

    def begin(self, *, wanted: bool = False) -> None:
        """Another command may follow."""
        self.fresh, self.words, self.wanted, self.bare = True, 0, wanted, True

    def begin_part(self, part: str = "") -> None:
        self.part, self.empty = part, True
        self.begin()

    def hold(self, *, fresh: bool = False) -> None:
        """A command has begun."""
        self.fresh, self.wanted, self.bare, self.empty = fresh, False, False, False


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._documents: list[tuple[str, bool, bool]] = []
        """Here-documents whose lines are still to come: the delimiter, whether it is quoted, whether tabs are
        dropped."""
        self._tries = 0

    def command(self, at: int) -> int:
        """The index after the command that begins here, and after its line."""
        self._documents.clear()
        try:
            return self._until("script", at)
        except (_Incomplete, RecursionError):  # the latter only for nesting that no person writes
            return len(self._text)
        except _Wrong as wrong:
            return self._text.find("\n", wrong.at) + 1 or len(self._text)

    def _until(self, kind: str, at: int) -> int:
        """Read until the script's command, or the substitution, is complete."""
        blocks = [_Block(kind)]
        while True:
            at = self._blank(at)
            here = self._peek(at)
            block = blocks[-1]
            if not here:
                if kind == "script" and len(blocks) == 1 and not block.wanted and not self._documents:
                    return at
                raise _Incomplete
            if here == "#":
                at = self._comment(at)
            elif here == "\n":
                at = self._bodies(at + 1)
                if kind == "script" and len(blocks) == 1 and not block.wanted:
                    return at
                self._line_ended(block)
            elif block.kind == "case" and block.part == "patterns":
                at = self._patterns(blocks, at)
            elif not self._is_substitution(at) and (operator := _OPERATOR.match(self._text, at)):
                at = self._operator(blocks, operator[0], at)
                if not blocks:
                    return at
            else:
                at = self._word_in(blocks, at)

    def _line_ended(self, block: _Block) -> None:
        if block.part == "words":
            block.part = "name"
        block.begin(wanted=block.wanted)

    # Between words.

    def _operator(self, blocks: list[_Block], operator: str, at: int) -> int:
        block, end = blocks[-1], at + len(operator)
        if operator in ("<<", "<<-", *_REDIRECTIONS):
            block.hold()
            at, end = end, self._word(self._blank(end))
            if operator in ("<<", "<<-"):
                self._document(self._blank(at), end, dropping_tabs=operator == "<<-")
            return end
        if operator == ";" and block.part in ("words", "name") and not block.wanted:
            block.part = "name"
            block.begin()
            return end
        if operator in _ENDS_COMMAND and not block.bare and block.part != "words":
            block.begin(wanted=operator in _WANTS_MORE)
            return end
        if operator == "(":
            return self._parenthesis(blocks, at)
        if operator == ")" and block.kind == "(" and not block.wanted:
            self._closed(blocks)
            return end
        if operator in (";;", ";&", ";;&") and block.kind == "case" and not block.wanted:
            block.part = "patterns"
            return end
        raise _Wrong(at)

    def _parenthesis(self, blocks: list[_Block], at: int) -> int:
        block = blocks[-1]
        if block.fresh and block.part != "name":
            block.hold()
            if self._text.startswith("((", at) and (end := self._arithmetic(at + 2)):
                return end
            blocks.append(_Block("("))
            return at + 1
        if block.words == 1 and (empty := _FUNCTION.match(self._text, at)):
            block.begin(wanted=True)
            return empty.end()
        raise _Wrong(at)

    def _closed(self, blocks: list[_Block]) -> None:
        blocks.pop()
        if blocks:
            blocks[-1].hold(fresh=True)

    def _document(self, at: int, end: int, *, dropping_tabs: bool) -> None:
        written = self._text[at:end]
        delimiter = _QUOTING.sub(lambda quoting: quoting[1] or "", written)
        self._documents.append((delimiter, delimiter != written, dropping_tabs))

    def _bodies(self, at: int) -> int:
        """The index after the here-documents that begin with this line."""
        for delimiter, quoted, dropping_tabs in self._documents:
            while True:
                if at >= len(self._text):
                    raise _Incomplete
                line, at = self._line(at)
                while not quoted and (len(line) - len(line.rstrip("\\"))) % 2 and at < len(self._text):
                    more, at = self._line(at)
                    line = line[:-1] + more
                if (line.lstrip("\t") if dropping_tabs else line) == delimiter:
                    break
        self._documents.clear()
        return at

    def _line(self, at: int) -> tuple[str, int]:
        end = self._text.find("\n", at)
        end = len(self._text) if end < 0 else end
        return self._text[at:end], end + 1

    # Words, and those that open and close blocks.

    def _word_in(self, blocks: list[_Block], at: int) -> int:
        block = blocks[-1]
        end = self._word(at)
        written = self._written(at, end)
        if block.part == "name" and written == "in" and block.words == 0:
            block.part = "words"
        elif block.part == "name" and written not in ("do", "{"):
            raise _Wrong(at)
        elif block.fresh and block.part != "words" and (keyword := _KEYWORDS.get(written)):
            return keyword(self, blocks, at, end)
        else:
            block.hold()
            block.words += 1
        return end

    def _opens(self, blocks: list[_Block], at: int, end: int) -> int:
        """`if`, `while`, `until` and `{`."""
        written = self._written(at, end)
        if blocks[-1].part == "name":
            blocks[-1] = _Block("{")  # in place of do and done
        else:
            blocks[-1].hold()
            blocks.append(_Block("{") if written == "{" else _Block("if" if written == "if" else "loop", "head"))
        return end

    def _counts(self, blocks: list[_Block], at: int, end: int) -> int:
        """`for` and `select`, with their words."""
        blocks[-1].hold()
        blocks.append(_Block("loop", "name"))
        at = self._blank(end)
        if self._text.startswith("((", at):
            return self._arithmetic(at + 2) or at + 2
        return self._word(at)

    def _chooses(self, blocks: list[_Block], at: int, end: int) -> int:
        """`case`, up to `in`."""
        blocks[-1].hold()
        at = self._over_lines(self._word(self._blank(end)))
        end = self._word(at)
        if self._written(at, end) != "in":
            raise _Wrong(at)
        blocks.append(_Block("case", "patterns"))
        return end

    def _patterns(self, blocks: list[_Block], at: int) -> int:
        """The patterns before `)` in a case, or the case's end."""
        if self._peek(at) == "(":
            at = self._blank(at + 1)
        elif self._written(at, end := self._word(at)) == "esac":
            self._closed(blocks)
            return end
        while True:
            end = self._word(at)
            after = self._blank(end)
            match self._peek(after):
                case "":
                    raise _Incomplete
                case "|" if end > at:
                    at = self._blank(after + 1)
                case ")" if end > at:
                    blocks[-1].begin_part("body")
                    return after + 1
                case _:
                    raise _Wrong(after)

    def _goes_on(self, blocks: list[_Block], at: int, end: int) -> int:
        """`then`, `elif`, `else` and `do`."""
        block, written = blocks[-1], self._written(at, end)
        kind, parts = ("loop", ("name", "head")) if written == "do" else ("if", ("head",))
        if written in ("elif", "else"):
            parts = ("body",)
        if block.kind != kind or block.part not in parts or block.wanted or (block.empty and block.part != "name"):
            raise _Wrong(at)
        block.begin_part("head" if written == "elif" else "body")
        return end

    def _closes(self, blocks: list[_Block], at: int, end: int) -> int:
        """`fi`, `done`, `esac` and `}`."""
        block = blocks[-1]
        opened = {"fi": ("if", "body"), "done": ("loop", "body"), "esac": ("case", "body"), "}": ("{", "")}
        if (block.kind, block.part) != opened[self._written(at, end)] or block.wanted:
            raise _Wrong(at)
        if block.empty and block.kind != "case":
            raise _Wrong(at)
        self._closed(blocks)
        return end

    def _names(self, blocks: list[_Block], at: int, end: int) -> int:
        """`function`, with its name."""
        at = self._blank(self._word(self._blank(end)))
        blocks[-1].begin(wanted=True)
        empty = _FUNCTION.match(self._text, at)
        return empty.end() if empty else at

    def _precedes(self, blocks: list[_Block], at: int, end: int) -> int:
        """`!`, `time` and `coproc`: a command follows."""
        blocks[-1].hold(fresh=True)
        return end

    def _tests(self, blocks: list[_Block], at: int, end: int) -> int:
        """`[[`, to its end."""
        while True:
            end = self._over_lines(end)
            if not self._peek(end):
                raise _Incomplete
            at, end = end, self._word(end)
            if self._written(at, end) == "]]":
                blocks[-1].hold(fresh=True)
                return end
            if at == end:
                end += 1

    # Inside words.

    def _word(self, at: int) -> int:
        """The index after the word that begins here, if one does."""
        begin = at
        while here := self._peek(at):
            if plain := _PLAIN.match(self._text, at):
                at = plain.end()
            elif here == "\\":
                at = self._escaped(at)
            elif here == "(" and at > begin and self._text[at - 1] in "?*+@!":
                at = self._balanced(at + 1)
            elif here == "(" and _ASSIGNMENT.fullmatch(self._text, begin, at):
                at = self._array(at + 1)
            elif self._is_substitution(at):
                at = self._substitution(at + 2)
            elif here in "'\"`$":
                at = self._quoted(at)
            else:
                break
        return at

    def _written(self, at: int, end: int) -> str:
        return self._text[at:end].replace("\\\n", "")

    def _quoted(self, at: int, *, inside: bool = False) -> int:
        """The index after what a quote, a backtick or a dollar opens; `inside` double quotes, some of them open
        nothing."""
        match self._text[at : at + 2]:
            case "$'" if not inside:
                return self._matched(_ANSI_QUOTED, at + 2)
            case '$"' if not inside:
                return self._double_quoted(at + 2)
            case "${":
                return self._braced(at + 2, inside=inside)
            case "$(":
                if self._text.startswith("((", at + 1) and (end := self._arithmetic(at + 3)):
                    return end
                return self._substitution(at + 2)
        match self._text[at]:
            case "'":
                return self._found("'", at + 1)
            case '"':
                return self._double_quoted(at + 1)
            case "`":
                return self._matched(_BACKTICKED, at + 1)
        return at + 1

    def _is_substitution(self, at: int) -> bool:
        """`<(` and `>(`, which are words."""
        return self._text[at : at + 2] in ("<(", ">(")

    def _substitution(self, at: int) -> int:
        return self._until("(", at)

    def _double_quoted(self, at: int) -> int:
        return self._to('"', at, inside=True)

    def _braced(self, at: int, *, inside: bool) -> int:
        return self._to("}", at, inside=inside)

    def _to(self, end: str, at: int, *, inside: bool) -> int:
        ordinary = _ORDINARY[inside]
        while (here := self._peek(at)) != end:
            if not here:
                raise _Incomplete
            if here == "\\":
                at = self._escaped(at)
            elif plain := ordinary.match(self._text, at):
                at = plain.end()
            elif here in '"`$' or (here == "'" and not inside):
                at = self._quoted(at, inside=inside)
            else:
                at += 1
        return at + 1

    def _arithmetic(self, at: int) -> int:
        """The index after `))`; 0 if these were two parentheses of another kind."""
        open_ones = 0
        while (here := self._peek(at)) and self._tries < _TRIES:
            if here == ")" and not open_ones:
                if self._text.startswith("))", at):
                    return at + 2
                self._tries += 1
                return 0
            open_ones += (here == "(") - (here == ")")
            at = self._escaped(at) if here == "\\" else self._quoted(at) if here in "'\"`$" else at + 1
        if here:
            return 0
        raise _Incomplete

    def _balanced(self, at: int) -> int:
        """The index after the parenthesis that closes an extended pattern."""
        open_ones = 1
        while here := self._peek(at):
            open_ones += (here == "(") - (here == ")")
            at = self._escaped(at) if here == "\\" else self._quoted(at) if here in "'\"`$" else at + 1
            if not open_ones:
                return at
        raise _Incomplete

    def _array(self, at: int) -> int:
        while (here := self._peek(at := self._over_lines(at))) != ")":
            if not here:
                raise _Incomplete
            end = self._word(at)
            if end == at:
                raise _Wrong(at)
            at = end
        return at + 1

    # Characters.

    def _peek(self, at: int) -> str:
        return self._text[at : at + 1]

    def _blank(self, at: int) -> int:
        found = _BLANK.match(self._text, at)
        return found.end() if found else at

    def _comment(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end

    def _over_lines(self, at: int) -> int:
        """The index after blanks, comments and line ends."""
        while True:
            at = self._blank(at)
            if self._peek(at) == "#":
                at = self._comment(at)
            elif self._peek(at) == "\n":
                at = self._bodies(at + 1)
            else:
                return at

    def _escaped(self, at: int) -> int:
        if at + 1 >= len(self._text):
            raise _Incomplete
        return at + 2

    def _found(self, end: str, at: int) -> int:
        if (at := self._text.find(end, at)) < 0:
            raise _Incomplete
        return at + 1

    def _matched(self, pattern: re.Pattern[str], at: int) -> int:
        if (found := pattern.match(self._text, at)) is None:
            raise _Incomplete
        return found.end()


_KEYWORDS: Mapping[str, Callable[[_Reader, list[_Block], int, int], int]] = {
    **dict.fromkeys(("if", "while", "until", "{"), _Reader._opens),
    **dict.fromkeys(("for", "select"), _Reader._counts),
    **dict.fromkeys(("then", "elif", "else", "do"), _Reader._goes_on),
    **dict.fromkeys(("fi", "done", "esac", "}"), _Reader._closes),
    **dict.fromkeys(("!", "time", "coproc"), _Reader._precedes),
    "case": _Reader._chooses,
    "function": _Reader._names,
    "[[": _Reader._tests,
}
"""Keywords where a command may begin."""
