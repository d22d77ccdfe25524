"""Prove that what a rotary module returns reaches the layers as it is, and nobody else.

A half-width table would be misread by code that looks into it. So in every method of a model that
asks a rotary module, or that is handed ``position_embeddings``, the table may only be named,
chosen from a dictionary, compared with None and handed on.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import TYPE_CHECKING

from ropewalk.errors import ConfigError
from ropewalk.extension.methods import methods_of, plain

if TYPE_CHECKING:
    from types import FunctionType

_HANDED = "position_embeddings"


@functools.cache
def check_wiring(cls: type, rotaries: tuple[str, ...]) -> None:
    """Refuse a class that does more with a table than to hand it on.

    Args:
        cls: Class of a module of the model that is no attention layer.
        rotaries: Names of its attributes that are rotary modules.

    Raises:
        ConfigError: A method computes with the table, or cannot be read.
    """
    for name, method in methods_of(cls):
        function = plain(method)
        code = function.__code__
        takes = _HANDED in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if takes or set(rotaries) & set(code.co_names):
            _Wires(f"{cls.__name__}.{name}", function, rotaries).check()


class _Wires:
    """The table's way through one method."""

    def __init__(self, where: str, function: FunctionType, rotaries: tuple[str, ...]) -> None:
        self.where, self.rotaries = where, rotaries
        try:
            source = textwrap.dedent(inspect.getsource(function))
            self.tree: ast.AST = ast.parse(source).body[0]
        except (OSError, TypeError, SyntaxError, IndexError) as error:
            raise ConfigError(f"{where} has no source to read") from error
        self.first = function.__code__.co_firstlineno
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    def check(self) -> None:
        """Follow the table from where it comes in."""
        names, followed = {_HANDED}, set[str]()
        for node in ast.walk(self.tree):
            asks = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if asks and node.func.attr in self.rotaries:  # type: ignore[attr-defined]
                names |= self._onwards(node)
        while names - followed:
            name = (names - followed).pop()
            followed.add(name)
            for node in ast.walk(self.tree):
                loads = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
                if loads and node.id == name:  # type: ignore[attr-defined]
                    names |= self._onwards(node)

    def _onwards(self, node: ast.AST) -> set[str]:
        """Return the variables that a value goes to, and refuse whatever else is done with it."""
        parent = self.parents[node]
        if isinstance(parent, ast.Assign) and parent.value is node:
            targets = set(map(_variable, parent.targets))
            if "" not in targets:
                return targets
        if isinstance(parent, ast.Subscript) and _by_layer_type(parent, node):
            return set() if isinstance(parent.ctx, ast.Store) else self._onwards(parent)
        if isinstance(parent, ast.Attribute) and parent.attr == "get":  # no table has it
            return self._onwards(self.parents[parent])
        if isinstance(parent, ast.IfExp):
            return set() if parent.test is node else self._onwards(parent)
        if isinstance(parent, ast.DictComp) and parent.value is node:
            return self._onwards(parent)
        if isinstance(parent, ast.Compare) and isinstance(parent.ops[0], ast.Is | ast.IsNot):
            return set()
        if isinstance(parent, ast.keyword):
            parent = self.parents[parent]
        if isinstance(parent, ast.Call) and parent.func is not node and not _computes(parent.func):
            return set()
        line = self.first + getattr(node, "lineno", 1) - 1
        raise ConfigError(
            f"{self.where} does more with the table than to hand it on (line {line} of its file)"
        )


def _variable(target: ast.expr) -> str:
    """Return the variable that is assigned to, or whose entry is."""
    if isinstance(target, ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def _by_layer_type(entry: ast.Subscript, node: ast.AST) -> bool:
    """Whether an entry is one of a dictionary of tables, and not cos or sin of a table."""
    return entry.value is node and not isinstance(entry.slice, ast.Constant | ast.Slice | ast.Tuple)


def _computes(function: ast.expr) -> bool:
    """Whether what is called is a function of torch or a builtin rather than a layer."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name) and function.id in {
        *("torch", "nn", "F", "tuple", "list", "zip", "map", "iter", "sum", "len", "next")
    }
