"""Read a model's own methods, prove what they do with cos and sin, and redirect their rotation.

transformers' layers call a function of their module, ``apply_rotary_pos_emb(q, k, cos, sin)``.
Patching that function would change every model of the family in the process. Here the method that
calls it is compiled once more from its own source, with that one name replaced by a method of
the layer; all other names keep their meaning, in the globals of the original, which torch.compile
follows as usual. The same reading of the source proves that cos and sin are used for nothing else.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ropewalk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

REDIRECTED = "_ropewalk_apply"
"""Name of the method that a redirected one calls instead of its module's function."""


@dataclass(frozen=True)
class Call:
    """One way in which a class calls a function that rotates."""

    function: FunctionType
    """The function of the class's module."""
    vectors: tuple[str, ...]
    """Names of the variables that are rotated: q and k, or one of them."""
    unsqueeze_dim: int
    """Dimension along which the function gives the table its heads: 1 or 2."""
    fresh: tuple[str, ...] | None
    """Where both variables are overwritten by the result and were nothing but views of outputs of
    submodules until then: the names of these submodules. None: somebody else may see them."""


@dataclass(frozen=True)
class Rotating:
    """The methods of a class that rotate, before and after."""

    methods: dict[str, Any]
    """Redirected methods by name."""
    calls: tuple[Call, ...]


def mentions_table(cls: type) -> bool:
    """Return whether a method of a class has variables for cos and sin, or applies a rotation.

    Args:
        cls: Class of a module of some model.
    """
    return any(_mentions(plain(method)) for _, method in _methods(cls))


@functools.cache
def rotating(cls: type) -> Rotating:
    """Return the redirected methods of a class.

    Args:
        cls: A class that :func:`mentions_table`.

    Raises:
        ConfigError: The use of cos and sin cannot be proved to be a plain rotation.
    """
    methods: dict[str, Any] = {}
    calls: list[Call] = []
    for name, method in _methods(cls):
        if not _mentions(plain(method)):
            continue
        reader = _Reader(cls, name, method)
        methods[name] = reader.redirected()
        calls.extend(reader.calls)
    return Rotating(methods, tuple(calls))


def plain(method: Any) -> FunctionType:
    """Return the function below the decorators of a method.

    Args:
        method: What stands in the ``__dict__`` of a class.
    """
    found: FunctionType = inspect.unwrap(method)
    return found


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods that a class really has, torch's own left out."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(base).items():
            if name not in seen and isinstance(value, FunctionType):
                seen.add(name)
                if isinstance(plain(value), FunctionType):
                    yield name, value


def _mentions(function: FunctionType) -> bool:
    code = function.__code__
    variables = {*code.co_varnames, *code.co_cellvars}
    return {"cos", "sin"} <= variables or any(map(is_apply_name, code.co_names))


def is_apply_name(name: str) -> bool:
    """Return whether a function of this name rotates vectors.

    Args:
        name: Of a global.
    """
    return name.startswith("apply_") and ("rotary" in name or "rope" in name)


class _Reader:
    """Read one method, and compile it again with its rotation redirected."""

    def __init__(self, cls: type, name: str, method: Any) -> None:
        self.cls, self.name, self.method = cls, name, method
        self.function = plain(method)
        self.calls: list[Call] = []
        self.tree = self._parsed()
        self.own = self.tree.args.args[0].arg if self.tree.args.args else ""
        self.tables: dict[str, int] = {}  # variable to 0 for cos, 1 for sin
        self._find_tables()
        self._find_calls()
        self._refuse_other_uses()

    def redirected(self) -> Any:
        """Return the method with its calls redirected, decorated as before."""
        module = ast.Module([_Redirect(self.own).visit(self.tree)], [])
        ast.fix_missing_locations(module)
        namespace: dict[str, Any] = {}
        code = compile(module, self.function.__code__.co_filename, "exec", dont_inherit=True)
        # The text is that of the method itself with one name changed, in its own globals.
        exec(code, self.function.__globals__, namespace)
        result = namespace[self.tree.name]
        for function in (result, inspect.unwrap(result)):
            function.__qualname__ = self.function.__qualname__
        return result

    def _parsed(self) -> ast.FunctionDef:
        if self.function.__code__.co_freevars:
            raise self._refused("is a closure, whose text alone does not say what it does")
        try:
            lines, first = inspect.getsourcelines(self.function)
            tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError) as error:
            raise self._refused("has no source to read") from error
        if not isinstance(tree, ast.FunctionDef) or tree.name != self.function.__name__:
            raise self._refused("has a source that is not its own")
        ast.increment_lineno(tree, first - 1)
        wrappers, function = 0, self.method
        while hasattr(function, "__wrapped__"):
            wrappers, function = wrappers + 1, function.__wrapped__
        if wrappers != len(tree.decorator_list):
            raise self._refused("is wrapped by something that is not in its source")
        return tree

    def _find_tables(self) -> None:
        """Note the variables that hold cos and sin: ``cos, sin = position_embeddings``."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                continue
            target = node.targets[0]
            if not (isinstance(target, ast.Tuple) and len(target.elts) == 2):
                continue
            names = [item.id if isinstance(item, ast.Name) else "" for item in target.elts]
            if names != ["cos", "sin"]:
                continue
            from_argument = isinstance(node.value, ast.Name)
            from_module = isinstance(node.value, ast.Call) and self._submodule(node.value)
            if isinstance(node.value, ast.Tuple) and all(map(_is_none, node.value.elts)):
                continue
            if not from_argument and not from_module:
                raise self._refused("changes the table before it rotates", node)
            self.tables = {"cos": 0, "sin": 1}

    def _find_calls(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if is_apply_name(node.func.id):
                    self.calls.append(self._call(node, node.func.id))
        if not self.calls or not self.tables:
            raise self._refused("has cos and sin and no call of the form apply(q, k, cos, sin)")

    def _call(self, node: ast.Call, name: str) -> Call:
        function = self.function.__globals__.get(name)
        if not isinstance(function, FunctionType):
            raise self._refused(f"calls {name}, which is no function of its module", node)
        parameters = list(inspect.signature(function).parameters)
        count = next((n for n in (1, 2) if parameters[n : n + 2] == ["cos", "sin"]), 0)
        if not count or "unsqueeze_dim" not in parameters:
            raise self._refused(f"calls {name}({', '.join(parameters)})", node)
        given = [item.id if isinstance(item, ast.Name) else "" for item in node.args]
        if len(given) != count + 2 or "" in given or given[count:] != ["cos", "sin"]:
            raise self._refused(f"calls {name} with something other than plain variables", node)
        unsqueeze_dim: object = inspect.signature(function).parameters["unsqueeze_dim"].default
        for keyword in node.keywords:
            if keyword.arg != "unsqueeze_dim" or not isinstance(keyword.value, ast.Constant):
                raise self._refused(f"calls {name} with {keyword.arg}", node)
            unsqueeze_dim = keyword.value.value
        if unsqueeze_dim not in (1, 2):
            raise self._refused(f"calls {name} with unsqueeze_dim={unsqueeze_dim}", node)
        vectors = tuple(given[:count])
        assert isinstance(unsqueeze_dim, int)
        return Call(function, vectors, unsqueeze_dim, self._fresh(node, vectors))

    def _refuse_other_uses(self) -> None:
        """Refuse any use of cos, sin and the function beside the calls that were found."""
        inside: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                if is_apply_name(node.func.id):
                    inside.update(id(item) for item in (node.func, *node.args))
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Name) or id(node) in inside:
                continue
            if is_apply_name(node.id):
                raise self._refused(f"uses {node.id} otherwise than by calling it", node)
            if node.id in self.tables and isinstance(node.ctx, ast.Load):
                raise self._refused(f"uses {node.id} for more than the rotation", node)

    def _fresh(self, call: ast.Call, vectors: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the submodules whose outputs the vectors are, if nobody else can see them."""
        assignments = [node for node in ast.walk(self.tree) if isinstance(node, ast.Assign)]
        result = next((node for node in assignments if node.value is call), None)
        if result is None or len(vectors) != 2 or len(result.targets) != 1:
            return None
        target = result.targets[0]
        if not isinstance(target, ast.Tuple) or tuple(map(_name, target.elts)) != vectors:
            return None
        producers: list[str] = []
        for vector in vectors:
            own: set[int] = set()
            for node in assignments:
                if node.lineno < call.lineno and _assigns(node, vector):
                    producer = self._producer(node.value, vector)
                    if len(node.targets) != 1 or producer is None:
                        return None
                    producers.append(producer)
                    own.update(id(item) for item in ast.walk(node.value))
            own.update(id(item) for item in call.args)
            for item in ast.walk(self.tree):
                reads = isinstance(item, ast.Name) and item.id == vector
                if reads and isinstance(item.ctx, ast.Load) and item.lineno <= call.lineno:  # type: ignore[attr-defined]
                    if id(item) not in own:
                        return None
            if not own - {id(item) for item in call.args}:
                return None
        return tuple(dict.fromkeys(producers))

    def _producer(self, value: ast.expr, vector: str) -> str | None:
        """Return X for ``self.X(...)`` followed by views, as in ``self.X(h).view(s)``."""
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            submodule = self._submodule(value)
            if submodule:
                return submodule
            if value.func.attr not in ("view", "transpose", "reshape", "contiguous", "unflatten"):
                return None
            value = value.func.value
        return None

    def _submodule(self, call: ast.Call) -> str:
        func = call.func
        if isinstance(func, ast.Attribute) and _name(func.value) == self.own:
            return func.attr
        return ""

    def _refused(self, reason: str, node: ast.AST | None = None) -> ConfigError:
        line = f" (line {node.lineno} of its file)" if hasattr(node, "lineno") else ""  # type: ignore[union-attr]
        return ConfigError(f"{self.cls.__name__}.{self.name} {reason}{line}")


class _Redirect(ast.NodeTransformer):
    """Replace ``apply_...(`` by ``self._ropewalk_apply(``."""

    def __init__(self, own: str) -> None:
        self.own = own

    def visit_Call(self, node: ast.Call) -> ast.AST:  # noqa: N802
        """Redirect a call."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and is_apply_name(node.func.id):
            own = ast.copy_location(ast.Name(self.own, ast.Load()), node.func)
            node.func = ast.copy_location(ast.Attribute(own, REDIRECTED, ast.Load()), node.func)
        return node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _assigns(node: ast.Assign, name: str) -> bool:
    return any(
        isinstance(item, ast.Name) and item.id == name
        for target in node.targets
        for item in ast.walk(target)
    )
