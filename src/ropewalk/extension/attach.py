"""``attach``: run a live transformers model on our table and our operator, and back again."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, NamedTuple

from torch import nn

from ropewalk.errors import ConfigError
from ropewalk.extension.methods import mentions_table, plain, rotating
from ropewalk.extension.probing import check_rotary, turning_by_width
from ropewalk.extension.swapping import (
    Tables,
    Turning,
    attached_attention,
    attached_rotary,
    is_attached,
    is_wrapped,
    original_of,
    specs_of,
    swap,
    swap_back,
)
from ropewalk.extension.wiring import check_wiring
from ropewalk.rotary import RotaryEmbedding
from ropewalk.spec import DynamicNTK, RopeSpec, RopeUse, rope_layers
from ropewalk.spec.checks import choice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Literal, Self

    AngleDtype = Literal["float64", "float32"]


class Attached:
    """What :func:`attach` did to a model; a context manager that undoes it.

    Example:
        >>> Attached(nn.Linear(2, 2)).layers
        ()
    """

    def __init__(self, model: nn.Module, changed: Sequence[nn.Module] = ()) -> None:
        self.model = model
        """The model itself."""
        self._changed = {id(module) for module in changed}

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the modules that are attached now, rotary modules included."""
        return tuple(name for name, module in self.model.named_modules() if is_attached(module))

    @property
    def specs(self) -> frozenset[RopeSpec]:
        """The rotations that they compute."""
        modules = filter(is_attached, self.model.modules())
        return frozenset().union(*map(specs_of, modules))

    def detach(self) -> None:
        """Give every module its own class back; a model that is not attached stays as it is.

        Raises:
            ConfigError: A module was wrapped after it was attached, so that its own forward is
                out of reach.
        """
        self._detach({name: m for name, m in self.model.named_modules() if is_attached(m)})

    def _detach(self, modules: dict[str, nn.Module]) -> None:
        for name, module in modules.items():
            if is_wrapped(module):
                raise ConfigError(
                    f"model must be unwrapped before it is detached; {name} had its forward "
                    "or class replaced after it was attached; remove its hooks first"
                )
        for module in modules.values():
            swap_back(module)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        named = self.model.named_modules()
        ours = {name: module for name, module in named if id(module) in self._changed}
        self._detach({name: module for name, module in ours.items() if is_attached(module)})

    def __repr__(self) -> str:
        return f"<Attached {type(self.model).__name__}: {len(self.layers)} modules>"


def attach(model: nn.Module, *, angle_dtype: AngleDtype = "float64") -> Attached:
    r"""Run a live transformers model on our table and operator, with the same rotation.

    The model's rotary modules return our half-width table, and its attention layers rotate with
    :class:`~ropewalk.RotaryEmbedding`. Only this model changes, not its library; parameters,
    config, state dict and module names stay. Logits stay equal up to rounding: the angles
    :math:`p \, \omega_j` are exact where the model rounds them to float32, and vectors are
    rounded once.

    What a model does with cos and sin is read in the source of its layers, and its rotation is
    compared by numbers with the one that its config describes. What cannot be proved is refused,
    and then nothing has changed.

    Args:
        model: A transformers model, or a module that holds one (PEFT, torch.compile).
        angle_dtype: "float64", or "float32" for angles rounded as the model itself rounds them.

    Returns:
        A handle with ``detach()``; as a context manager it detaches at the end. A model that is
        attached already stays as it is, also at the end of an inner context.

    Raises:
        ConfigError: The model cannot be attached exactly; the message names module and reason.

    Example:
        >>> from transformers import LlamaConfig, LlamaModel
        >>> small = dict(vocab_size=8, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
        >>> attach(LlamaModel(LlamaConfig(num_attention_heads=2, **small))).layers
        ('layers.0.self_attn', 'rotary_emb')
    """
    given: object = model
    if not isinstance(given, nn.Module):
        raise ConfigError(f"model must be a torch module; got {type(given).__name__}")
    choice("angle_dtype", angle_dtype, ("float64", "float32"))
    already = Attached(model)
    plan = _planned(model, angle_dtype)
    if not plan:
        other = {spec.angle_dtype for spec in already.specs} - {angle_dtype}
        if other:
            raise ConfigError(
                f"angle_dtype must stay that of an attached model, {other.pop()!r}; "
                f"got {angle_dtype!r}; detach it first"
            )
        return already
    done: list[nn.Module] = []
    try:
        for change in plan:
            swap(change.module, change.cls, change.held)
            done.append(change.module)
    except BaseException:
        for module in done:
            swap_back(module)
        raise
    return Attached(model, done)


class _Change(NamedTuple):
    """A module, and what it is to become."""

    module: nn.Module
    cls: type
    held: Tables | Turning


class _Source(NamedTuple):
    """A rotary module and what its config says."""

    module: nn.Module
    config: object
    uses: list[RopeUse | None]
    tables: Tables


def _planned(model: nn.Module, angle_dtype: AngleDtype) -> list[_Change]:
    """Return all changes, proved, or refuse; nothing is changed yet."""
    modules = dict(model.named_modules())
    rotaries: dict[str, nn.Module] = {}
    layers: dict[str, nn.Module] = {}
    for name, module in modules.items():
        if is_attached(module) or not mentions_table(original_of(module)):
            continue
        (rotaries if _is_rotary(type(module)) else layers)[name] = module
    if not rotaries and not layers:
        if not Attached(model).layers:
            raise ConfigError(
                f"model must have a rotary module of transformers; {type(model).__name__} has none"
            )
        return []
    if not rotaries:
        tables = [name for name, module in layers.items() if "Rotary" in type(module).__name__]
        name = next(iter([*tables, *layers]))
        reason = "is called otherwise than with (x, position_ids)"
        if not tables:
            reason = "rotates with a table that comes from no rotary module"
        raise _refused(name, layers[name], reason)
    try:
        orders = {
            call.sin_first for m in layers.values() for call in rotating(original_of(m)).calls
        }
    except ConfigError as error:
        raise ConfigError(f"model cannot be attached exactly: {error}") from error
    if len(orders) > 1:
        raise ConfigError("model cannot be attached exactly: its layers unpack a table in two ways")
    sin_first = orders == {True}
    changes: list[_Change] = []
    sources: list[_Source] = []
    for name, module in rotaries.items():
        try:
            parent = modules[name.rpartition(".")[0]]
            config = getattr(module, "config", None) or getattr(parent, "config", None)
            source = _source(module, config, angle_dtype, sin_first)
            _check_hooks(module)
        except ConfigError as error:
            raise _refused(name, module, str(error)) from error
        sources.append(source)
        changes.append(_Change(module, attached_rotary(original_of(module)), source.tables))
    _check_wiring(modules, rotaries, layers)
    for name, module in layers.items():
        try:
            held = _turning(module, sources)
            changes.append(_Change(module, attached_attention(original_of(module)), held))
        except ConfigError as error:
            raise _refused(name, module, str(error)) from error
    return changes


def _check_wiring(
    modules: dict[str, nn.Module], rotaries: dict[str, nn.Module], layers: dict[str, nn.Module]
) -> None:
    """Refuse a model in which a table goes anywhere but to the attention layers."""
    for name, module in modules.items():
        if name in rotaries or name in layers or is_attached(module):
            continue
        children = module.named_children()
        asked = tuple(child for child, m in children if any(m is r for r in rotaries.values()))
        try:
            check_wiring(original_of(module), asked)
        except ConfigError as error:
            raise _refused(name, module, str(error)) from error


def _is_rotary(cls: type) -> bool:
    """Return whether a class makes tables of one-dimensional positions."""
    parameters = list(inspect.signature(plain(cls.forward)).parameters)  # type: ignore[attr-defined]
    known = (["self", "x", "position_ids"], ["self", "x", "position_ids", "layer_type"])
    return "Rotary" in cls.__name__ and parameters in known


def _source(module: nn.Module, config: object, angle_dtype: AngleDtype, sin_first: bool) -> _Source:
    """Read the rotations of a rotary module's config, and check that they are its own."""
    if config is None:
        raise ConfigError("has no config")
    layers = rope_layers(config)
    uses = [_plain_use(layer, angle_dtype) for layer in layers]
    specs: dict[str | None, RopeSpec]
    if "layer_type" in inspect.signature(plain(type(module).forward)).parameters:
        by_type = RopeSpec.per_layer_type(config)
        live = set(getattr(module, "rope_type", by_type))
        specs = {
            label: spec.replace(angle_dtype=angle_dtype)
            for label, spec in by_type.items()
            if spec is not None and label in live
        }
    else:
        distinct = {use.spec for use in uses if use is not None}
        if len(distinct) != 1:
            raise ConfigError(f"has one table for {len(distinct)} rotations")
        specs = {None: distinct.pop()}
    for spec in specs.values():
        if spec.n_axes > 1:
            raise ConfigError(f"has positions with {spec.n_axes} axes")
        if isinstance(spec.scaling, DynamicNTK):
            raise ConfigError(
                "has frequencies that depend on earlier calls (rope_type 'dynamic'); "
                "set a rule that does not change while text is generated, such as yarn"
            )
    tables = Tables({label: RotaryEmbedding(spec) for label, spec in specs.items()}, sin_first)
    check_rotary(module, tables)
    return _Source(module, config, uses, tables)


def _plain_use(layer: dict[str, RopeUse] | None, angle_dtype: AngleDtype) -> RopeUse | None:
    """Return the rotation of queries and keys, or refuse what else a layer rotates."""
    if layer is None:
        return None
    use = layer["attention"]
    if len(layer) > 1:
        raise ConfigError("serves an indexer of sparse attention beside the attention")
    if use.values or use.output_inverse or use.heads is not None or use.stage != "after_projection":
        raise ConfigError("rotates more or less than all queries and keys")
    return RopeUse(
        use.spec.replace(angle_dtype=angle_dtype), softmax_scale_factor=use.softmax_scale_factor
    )


def _check_hooks(module: nn.Module) -> None:
    if module._forward_hooks or module._forward_pre_hooks:
        raise ConfigError("has forward hooks, which would see a table of another width")
    _check_forward(module)


def _check_forward(module: nn.Module) -> None:
    if "forward" in vars(module):
        raise ConfigError(
            "has a forward of its own instead of its class's (accelerate's hooks do that); "
            "attach the model before it is dispatched"
        )


def _turning(module: nn.Module, sources: list[_Source]) -> Turning:
    """Find out what an attention layer rotates with, and prove it."""
    _check_forward(module)
    calls = rotating(original_of(module)).calls
    if len(sources) > 1:
        own = {id(child) for child in module.children()}
        config = getattr(module, "config", None)
        sources = [source for source in sources if id(source.module) in own] or [
            source for source in sources if source.config is config
        ]
    if len(sources) != 1:
        raise ConfigError("may read the table of several rotary modules; attach one tower alone")
    source = sources[0]
    use = _use_of(module, source.uses)
    if use is None:
        return Turning({}, None)
    labels = [label for label, rope in source.tables.by_label.items() if rope.spec == use.spec]
    if not labels:
        raise ConfigError("has a rotation that its rotary module does not make")
    by_width = turning_by_width(source.module, source.tables, labels[0], calls)
    return Turning(by_width, calls[0].fresh if len(calls) == 1 else None)


def _use_of(module: nn.Module, uses: list[RopeUse | None]) -> RopeUse | None:
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int) and 0 <= index < len(uses):
        return uses[index]
    if len(set(uses)) != 1:
        raise ConfigError(f"has layer_idx={index}, which does not tell its rotation")
    return uses[0]


def _refused(name: str, module: nn.Module, reason: str) -> ConfigError:
    return ConfigError(
        f"model cannot be attached exactly: {name or 'the model'} "
        f"({original_of(module).__name__}) {reason}"
    )
