"""The methods by name, Suture's own and those of other packages, and the ``[method]`` table of a
study.

Suture's own methods are written out. A package adds one with an entry point of the group
``suture.methods`` that names its `Declared`; a script passes it to ``suture.run(study,
methods=[...])``. See docs/methods.md, "A method of your own".
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from suture.errors import StudyError
from suture.schema.table import explain

if TYPE_CHECKING:
    from suture.methods.base import Method
    from suture.methods.declared import Declared, Fit, Public, Settings
    from suture.models.network import Network
    from suture.training.local import Local

Own = TypeVar("Own", bound="Settings")
_MODULES = {
    "additive": "additive",
    "fedavg": "fedavg",
    "fedprox": "fedprox",
    "fedadam": "fedopt",
    "fedyogi": "fedopt",
    "fedadagrad": "fedopt",
    "fedsgd": "fedsgd",
    "fedcluster": "fedcluster",
    "ifedavg": "ifedavg",
    "apfl": "apfl",
    "ditto": "ditto",
    "finetune": "finetune",
    "scaffold": "scaffold",
    "moon": "moon",
    "fairfed": "fairfed",
    "veil": "veil.method",
    "veil-printed": "veil.printed",
    "alone": "alone",
    "pooled": "pooled",
}
METHODS = tuple(_MODULES)
_STATISTICS = {
    "describe": "table_one",
    "survive": "survival",
    "associate": "regression",
    "evaluate": "evaluation",
    "prognosis": "prognosis",
}
"""Statistics run as methods do, and are asked for by commands of their own."""
DEFAULT = "fedadam"
RECOMMENDED = "recommended"
"""In a study: the method that suits it best, by public facts alone (`recommend`)."""
STARTER = {"lead": RECOMMENDED, "images": RECOMMENDED}
"""What `suture init` names in the study that it writes."""
_passed: dict[str, Declared] = {}
"""Methods that a script brought along."""


class MethodSpec(BaseModel):
    """How the hospitals learn together: what every method has, the settings of local training, and
    the settings of the study's methods (docs/methods.md)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = DEFAULT
    rounds: int = Field(default=100, ge=1)
    participation: float = Field(default=1.0, gt=0, le=1)
    local_epochs: int = Field(default=5, ge=1)
    local_steps: int | None = Field(default=None, ge=1)
    """A round of local training ends after so many steps, even before ``local_epochs`` do."""
    batch: int = Field(default=32, ge=1)
    rate: float = Field(default=0.01, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    rate_decay: float = Field(default=1.0, gt=0, le=1)
    rate_steps: int = Field(default=0, ge=0)
    class_weights: (
        tuple[Annotated[float, Field(gt=0)], ...] | Literal["balanced", "inverse"] | None
    ) = None

    def own(self, settings: type[Own]) -> Own:
        """The settings of one method, or of what is put around it."""
        given = self.model_extra or {}
        try:
            return settings(**{key: given[key] for key in settings.model_fields if key in given})
        except ValidationError as error:
            raise StudyError(explain(error, "method")) from None


SHARED = ("name", "rounds", "participation")
"""What every method has."""


def declared(name: str) -> Declared:
    """What a method says about itself.

    >>> declared("fedavg").cites[0].year
    2017
    """
    found = _passed.get(name) or _own(name) or _others().get(name)
    if found is None:
        raise StudyError(
            f"method.name: unknown method {name!r}; expected one of {', '.join(known())}"
        )
    return found


def known() -> tuple[str, ...]:
    """The names of all methods that are installed."""
    return tuple(dict.fromkeys((*METHODS, *_others(), *_passed)))


def found(names: Iterable[str]) -> bool:
    """Whether all of these methods and statistics are installed."""
    return set(names) <= {*known(), *_STATISTICS}


def bring(methods: Iterable[Declared]) -> None:
    """Make a script's own methods known in this process; a name of Suture's own is refused."""
    for one in methods:
        if one.name in (*METHODS, *_STATISTICS):
            raise StudyError(f"methods: {one.name!r} is one of Suture's own; choose another name")
        _passed[one.name] = one


@cache
def _own(name: str) -> Declared | None:
    if name in _STATISTICS:
        module = f"suture.statistics.{_STATISTICS[name]}"
    elif name in _MODULES:
        module = f"suture.methods.{_MODULES[name]}"
    else:
        return None
    found = import_module(module).DECLARED
    several: tuple[Declared, ...] = found if isinstance(found, tuple) else (found,)
    return next(one for one in several if one.name == name)


@cache
def _others() -> dict[str, Declared]:
    """Methods of other packages. One that cannot be loaded is an error where it is named, not
    before."""
    found = {}
    for point in entry_points(group="suture.methods"):
        if point.name in (*METHODS, *_STATISTICS):
            raise StudyError(
                f"package {point.value!r} brings a method {point.name!r}, which is one of Suture's "
                "own; uninstall it or ask its authors for another name"
            )
        found[point.name] = point.load()
    return found


def settings_of(names: Iterable[str]) -> dict[str, type[Settings]]:
    """Every own setting of some methods, with the class that declares it."""
    from suture.methods.ensemble import Ensembled
    from suture.methods.select import Selected

    found: dict[str, type[Settings]] = {}
    for one in map(declared, names):
        classes = (one.settings, *((Ensembled,) if one.global_model else ()))
        classes += (Selected,) if one.chooses else ()
        found |= {key: kind for kind in classes for key in kind.model_fields}
    return found


def defaults() -> dict[str, Any]:
    """Every setting of Suture's own methods at its default: what a study's digest is made from, so
    that it does not depend on which of them the study names."""
    return {key: kind.model_fields[key].default for key, kind in settings_of(METHODS).items()}


def completed(spec: MethodSpec, names: Sequence[str]) -> MethodSpec:
    """The table with every setting that the study's methods use, checked. One that none of them
    uses is refused, unless it says no more than the default."""
    used, given = settings_of(names), dict(spec.model_extra or {})
    shared = {*SHARED, *(key for name in names for key in declared(name).uses)}
    plain = spec.model_dump(include=set(MethodSpec.model_fields))
    idle = [
        key
        for key, field in MethodSpec.model_fields.items()
        if key not in shared and plain[key] != field.default
    ]
    for key in [*idle, *(key for key in given if key not in used)]:
        everything = settings_of(known())
        if key in everything and given[key] == everything[key].model_fields[key].default:
            del given[key]
            continue
        raise StudyError(_unused(key, names, {*everything, *MethodSpec.model_fields}))
    filled = {
        key: value
        for kind in dict.fromkeys(used.values())
        for key, value in MethodSpec(**given).own(kind)
    }
    return MethodSpec(**plain, **filled)


def kept(table: Mapping[str, Any], names: Sequence[str], given: Iterable[str]) -> dict[str, Any]:
    """A table of settings for other methods: what they do not use is left out, unless it was
    ``given`` for them."""
    uses = {*SHARED, *settings_of(names), *(key for name in names for key in declared(name).uses)}
    return {key: value for key, value in table.items() if key in uses or key in set(given)}


def _unused(key: str, names: Sequence[str], everything: Iterable[str]) -> str:
    who = " and ".join(names) + (" does" if len(names) == 1 else " do")
    users = [n for n in known() if key in settings_of([n]) or key in declared(n).uses]
    if users:
        return (
            f"method.{key}: {who} not use it, so it would change nothing. Remove it; "
            f"methods that use it: {', '.join(users)}"
        )
    near = difflib.get_close_matches(key, everything, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"method.{key}: there is no such setting{hint} (docs/methods.md lists them)"


def build(
    name: str,
    spec: MethodSpec,
    network: Network,
    local: Local,
    public: Public | None = None,
) -> Method:
    """The method that a study names, with the study's settings and what is public about the
    federation.

    >>> from suture.models.dense import Dense
    >>> from suture.training.local import Local
    >>> build("fedadam", MethodSpec(), Dense((6, 1)), Local()).label
    'FedAdam (FedCVR)'
    >>> build("fedavg", MethodSpec(ensemble=True), Dense((6, 1)), Local()).label
    'FedAvg, ensemble'
    """
    from suture.methods.declared import Public, Setup
    from suture.methods.ensemble import Ensembled, wrapped
    from suture.methods.select import Selected

    one = declared(name)
    public = public or Public()
    if not isinstance(public.outcome, one.outcomes):
        raise StudyError(one.refuses(public.outcome))
    if one.chooses and spec.own(Selected).candidates:
        return _selection(name, spec, network, local, public)
    setup = Setup(spec.own(one.settings), network, local, spec.rounds, spec.participation, public)
    method = one.build(setup)
    return wrapped(method, setup, spec.own(Ensembled)) if one.global_model else method


def measuring(
    trained: Method, trainers: tuple[str, ...], settings: Mapping[str, Any], public: Public
) -> Method:
    """The evaluation of what a method trains at the sites ``trainers``."""
    from suture.methods.declared import Setup
    from suture.models.dense import Dense
    from suture.training.local import Local

    one = declared("evaluate")
    own = one.settings.model_validate(settings)
    setup = Setup(own, Dense((1, 1)), Local(), public=public, trained=trained, trainers=trainers)
    return one.build(setup)


def _selection(
    name: str, spec: MethodSpec, network: Network, local: Local, public: Public | None
) -> Method:
    """The best of several candidates: the same method with some settings changed in each."""
    from dataclasses import replace

    from suture.methods.select import LOCAL, Selected, Selection, shares
    from suture.schema.outcome import Classes

    one, asked = declared(name), spec.own(Selected).candidates
    if public is not None and not isinstance(public.outcome, Classes):
        raise StudyError(
            "method.candidates are compared by Brier scores of classes: name none here"
        )
    rounds, found = shares(spec.rounds, len(asked)), []
    table = spec.model_dump() | {"rounds": rounds, "candidates": ()}
    for given in asked:
        allowed = {*one.own, *one.uses, *(("clip",) if one.clipped else ())}
        wrong = [key for key in given if key not in allowed]
        if wrong:
            raise StudyError(
                f"method.candidates: {name} has no setting {wrong[0]!r} that could differ between "
                f"candidates; expected some of {', '.join(sorted(allowed))}"
            )
        if not 0 < float(given.get("clip", 1.0)) < 1e6:
            raise StudyError(f"method.candidates: clip must be over 0, found {given['clip']}")
        try:
            tried = MethodSpec(**(table | {key: given[key] for key in given if key != "clip"}))
        except ValidationError as error:
            raise StudyError(explain(error, "method.candidates")) from None
        changed: dict[str, Any] = {LOCAL[key]: given[key] for key in given if key in LOCAL}
        found.append(build(name, tried, network, replace(local, **changed), public))
    arrays = ("weights", "bias") if one.model == "concepts" else ("params",)
    return Selection(found[0], tuple(found[1:]), rounds, asked, arrays)


def readable(model: str) -> str:
    """The methods whose finished model is of this kind, in words for an error.

    >>> readable("layers")
    'ifedavg'
    """
    return " or ".join(name for name in known() if declared(name).model == model)


def references(names: Sequence[str], private: bool) -> list[dict[str, Any]]:
    """The papers behind a study's methods and, where it promises something, behind the promise."""
    from suture.methods.declared import PROMISE

    papers = [paper for name in names for paper in declared(name).cites]
    return [paper._asdict() for paper in dict.fromkeys((*papers, *(PROMISE if private else ())))]


def described(public: Public | None = None) -> list[dict[str, Any]]:
    """Every method for a table: what it is, whether a budget can pay for it, its settings and
    papers; with what is ``public`` about a federation, how well it suits, best first."""
    fits = {} if public is None else {one.name: fit for one, fit in ranked(public)}
    rows = []
    for one in map(declared, known()):
        fit = fits.get(one.name)
        refused = one.unproven if public is not None and public.epsilon is not None else ""
        row = {
            "name": one.name,
            "private": not one.unproven,
            "settings": [*sorted(settings_of([one.name])), *sorted(one.uses)],
            "papers": [paper._asdict() for paper in one.cites],
        }
        if public is not None:
            row |= {"points": fit.points if fit else 0.0}
            row |= {"why": fit.why if fit else refused or one.suits(public).why}
        rows.append(row)
    return sorted(rows, key=lambda row: -float(row.get("points", 0)))


def recommend(spec: MethodSpec, public: Public) -> MethodSpec:
    """The table with the name of the method that suits the federation best, and with the settings
    which that method recommends for it, unless the study states them."""
    from suture.methods.declared import COMPARISON

    best, fit = ranked(public)[0]
    if fit.points <= COMPARISON.points:
        raise StudyError(f'method.name = "{RECOMMENDED}": no method suits this study; name one')
    given = spec.model_dump(exclude_unset=True)
    return MethodSpec(**{**best.schedule(public), **given, "name": best.name})


def ranked(public: Public) -> list[tuple[Declared, Fit]]:
    """The methods that suit a federation, best first, by what each declares about itself."""
    able = [one for one in map(declared, known()) if isinstance(public.outcome, one.outcomes)]
    rated = [(one, one.suits(public)) for one in able]
    private = public.epsilon is not None
    fitting = [(one, fit) for one, fit in rated if fit.points and not (private and one.unproven)]
    return sorted(fitting, key=lambda pair: -pair[1].points)
