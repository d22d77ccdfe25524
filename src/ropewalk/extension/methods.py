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
    from collections.abc import Callable, Iterator
    from typing import TypeGuard

REDIRECTED = "_ropewalk_"
"""Before the name of a function: the method that is called instead of it."""
_SIGNATURES = {("q", "k", "cos", "sin"): 2, ("x", "cos", "sin"): 1, ("tensor", "sin", "cos"): 1}
"""First parameters of the functions that are known, and how many of them are rotated."""


@dataclass(frozen=True)
class Call:
    """One way in which a class calls a function that rotates."""

    name: str
    """Name of the function in the class's module."""
    function: FunctionType
    """The function itself."""
    vectors: tuple[str, ...]
    """Names of the variables that are rotated: q and k, or one of them."""
    unsqueeze_dim: int
    """Dimension along which the function gives the table its heads: 1 or 2."""
    keywords: dict[str, int]
    """What the function is called with by name."""
    sin_first: bool
    """Whether the layer takes the table as (sin, cos), as GPT-J does."""
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
    return any(_mentions(plain(method)) for _, method in methods_of(cls))


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
    for name, method in methods_of(cls):
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


def methods_of(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods that a class really has by name, torch's own left out.

    Args:
        cls: Class of a module.
    """
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
        self.table: tuple[str, ...] = ()  # ("cos", "sin") as they are unpacked
        self._find_tables()
        self._find_calls()
        self._refuse_other_uses()

    def redirected(self) -> Any:
        """Return the method with its calls redirected, decorated as before."""
        module = ast.Module([_Redirect(self.own, self.calls).visit(self.tree)], [])
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
            if sorted(names) != ["cos", "sin"]:
                continue
            from_argument = isinstance(node.value, ast.Name)
            from_module = isinstance(node.value, ast.Call) and self._submodule(node.value)
            if isinstance(node.value, ast.Tuple) and all(map(_is_none, node.value.elts)):
                continue
            if not from_argument and not from_module:
                raise self._refused("changes the table before it rotates", node)
            self.table = tuple(names)

    def _find_calls(self) -> None:
        self.calls = [self._call(node) for node in ast.walk(self.tree) if _applies(node)]
        if not self.calls or not self.table:
            raise self._refused("has cos and sin and no call of the form apply(q, k, cos, sin)")

    def _call(self, node: ast.Call) -> Call:
        name = _name(node.func)
        function = self.function.__globals__.get(name)
        if not isinstance(function, FunctionType):
            raise self._refused(f"calls {name}, which is no function of its module", node)
        parameters = inspect.signature(function).parameters
        found = next((s for s in _SIGNATURES if tuple(parameters)[: len(s)] == s), None)
        if found is None:
            raise self._refused(f"calls {name}({', '.join(parameters)})", node)
        count, table = _SIGNATURES[found], list(found[-2:])
        given = [item.id if isinstance(item, ast.Name) else "" for item in node.args]
        if len(given) != count + 2 or "" in given or given[count:] != table:
            raise self._refused(f"calls {name} with something other than plain variables", node)
        keywords: dict[str, int] = {}
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if keyword.arg != "unsqueeze_dim" or not isinstance(value, int):
                raise self._refused(f"calls {name} with {keyword.arg}", node)
            keywords[keyword.arg] = value
        default = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in parameters else 2
        unsqueeze_dim = keywords.get("unsqueeze_dim", default)
        if unsqueeze_dim not in (1, 2):
            raise self._refused(f"calls {name} with unsqueeze_dim={unsqueeze_dim}", node)
        vectors = tuple(given[:count])
        sin_first = self.table[:1] == ("sin",)
        fresh = self._fresh(node, vectors)
        return Call(name, function, vectors, unsqueeze_dim, keywords, sin_first, fresh)

    def _refuse_other_uses(self) -> None:
        """Refuse any use of cos, sin and the function beside the calls that were found."""
        inside: set[int] = set()
        for node in ast.walk(self.tree):
            if _applies(node):
                inside.update(id(item) for item in (node.func, *node.args))
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Name) or id(node) in inside:
                continue
            if is_apply_name(node.id):
                raise self._refused(f"uses {node.id} otherwise than by calling it", node)
            if node.id in self.table and isinstance(node.ctx, ast.Load):
                raise self._refused(f"uses {node.id} for more than the rotation", node)

    def _fresh(self, call: ast.Call, vectors: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the submodules whose outputs the vectors are, if nobody else can see them."""
        assignments = [node for node in ast.walk(self.tree) if isinstance(node, ast.Assign)]
        result = next((node for node in assignments if node.value is call), None)
        if result is None or len(vectors) != 2 or not isinstance(result.targets[0], ast.Tuple):
            return None
        if tuple(map(_name, result.targets[0].elts)) != vectors:
            return None
        producers: list[str] = []
        for vector in vectors:
            before = [
                node
                for node in assignments
                if node.lineno < call.lineno and any(map(_names(vector), node.targets))
            ]
            inside = {id(item) for node in (*before, call) for item in ast.walk(node)}
            seen = any(
                id(item) not in inside and item.lineno <= call.lineno
                for item in ast.walk(self.tree)
                if isinstance(item, ast.Name)
                and item.id == vector
                and isinstance(item.ctx, ast.Load)
            )
            found = [self._producer(node) for node in before]
            if seen or not found or "" in found:
                return None
            producers.extend(found)
        return tuple(dict.fromkeys(producers))

    def _producer(self, node: ast.Assign) -> str:
        """Return X for ``v = self.X(...)`` and views of it, as ``v = self.X(h).view(s)``."""
        value = node.value
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return ""
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            submodule = self._submodule(value)
            if submodule:
                return submodule
            if value.func.attr not in ("view", "transpose", "reshape", "contiguous", "unflatten"):
                return ""
            value = value.func.value
        return ""

    def _submodule(self, call: ast.Call) -> str:
        func = call.func
        if isinstance(func, ast.Attribute) and _name(func.value) == self.own:
            return func.attr
        return ""

    def _refused(self, reason: str, node: ast.AST | None = None) -> ConfigError:
        line = f" (line {node.lineno} of its file)" if hasattr(node, "lineno") else ""  # type: ignore[union-attr]
        return ConfigError(f"{self.cls.__name__}.{self.name} {reason}{line}")


class _Redirect(ast.NodeTransformer):
    """Replace ``apply_x(q, k, cos, sin)`` by ``self._ropewalk_apply_x(q, k, cos, sin)``."""

    def __init__(self, own: str, calls: list[Call]) -> None:
        self.own = own
        self.dims = {call.name: call.unsqueeze_dim for call in calls if not call.keywords}

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Redirect a call, and name what its function has by default."""
        self.generic_visit(node)
        if _applies(node):
            name = _name(node.func)
            own = ast.copy_location(ast.Name(self.own, ast.Load()), node.func)
            node.func = ast.copy_location(
                ast.Attribute(own, REDIRECTED + name, ast.Load()), node.func
            )
            node.args[-2:] = [ast.Name("cos", ast.Load()), ast.Name("sin", ast.Load())]
            if not node.keywords:
                dim = ast.Constant(self.dims[name])
                node.keywords = [ast.keyword("unsqueeze_dim", dim)]
        return node


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _applies(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether a node calls a function that rotates."""
    return isinstance(node, ast.Call) and is_apply_name(_name(node.func))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _names(name: str) -> Callable[[ast.expr], bool]:
    """Return whether an assignment's target has a variable of that name in it."""

    def has(target: ast.expr) -> bool:
        return any(isinstance(item, ast.Name) and item.id == name for item in ast.walk(target))

    return has
