"""A hierarchy as a module of Python that declares it: to be saved, edited and loaded again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence

from fibration.language.atoms import SOURCE, TARGET, Attribute, Parameter, Stratum
from fibration.language.declared import Policy
from fibration.language.expressions import Expression
from fibration.language.gates import Gate, GatePerChannel
from fibration.language.grammar import CONSTRUCTORS, Invocation, Written, arguments, read
from fibration.language.hierarchy import Hierarchy
from fibration.language.objectives import Objective, Penalty
from fibration.language.outline import whole_batch
from fibration.language.strata import Assumption, Balanced, Fibration, MarkovKernel
from fibration.printing.formulas import STANDARD, Formulas, Object, Variables, number, with_strata
from fibration.printing.layout import WIDTH, assignment, call, laid, quoted

# Writes a formula that is an argument. The text is its variable if the formula is too long to be an argument.
Argument = Callable[[Expression, str], str]
OF_TOKENS = "weight_of_token"  # the variable of an objective's formula
METHODS = {"weigh": "weight", "keep": "kept", "per": "scale", "inward": "ceiling"}  # what their first arguments are


def python(hierarchy: Hierarchy) -> str:
    """Returns the text of a module that declares a hierarchy, in the way in which shipped losses are written.

    The module imports public names of `fibration`, and `Fraction` for a number that no float holds. It declares a
    hierarchy that equals `hierarchy`. The laws need not hold. Variables have the declared names, which are checked
    words, and other text is quoted: no text of a JSON file becomes code.

    A kernel's formula in JSON may call its strata `source` and `target`. The module has their names instead.

    Raises SpecError for a hierarchy that is made with a constructor of another package.
    """
    variables = Variables(hierarchy.name, _objects(hierarchy))
    roots: list[Expression] = []

    def collect(formula: Expression, role: str) -> str:
        roots.append(formula)
        return ""

    _Declaration(hierarchy, variables, collect).document()
    formulas = Formulas(variables, hierarchy.rows, roots)
    document = _Declaration(hierarchy, variables, formulas.argument).document()
    declared = assignment(variables.result, document, is_broken=True)
    objects = "\n".join(_declared(hierarchy, variables))
    parts = "\n".join(assignment(name, document) for name, document in formulas.statements)
    return "\n\n".join(filter(None, [_imports(variables.imports), objects, parts, declared])) + "\n"


def _objects(h: Hierarchy) -> list[Object]:
    """Returns all that a hierarchy names: its strata, finest first, policies, attributes and parameters."""
    shape = whole_batch(h)
    strata = dict.fromkeys([*map(Stratum, h.model_dump()["strata"]), h.rows])
    finest_first = sorted(strata, key=lambda s: -len(shape.coarser(s)))
    return [*finest_first, *h.policies.values(), *h.attributes.values(), *h.parameters.values()]


class _Declaration:
    """The call of `Hierarchy` that declares a hierarchy."""

    def __init__(self, h: Hierarchy, variables: Variables, argument: Argument) -> None:
        self.h, self.variables, self.argument = h, variables, argument
        self.words: dict[str, object] = {"source": SOURCE, "target": TARGET, **{o.name: o for o in variables.objects}}

    def document(self) -> str:
        h, of = self.h, self.variables.of
        rows = None if h.rows.name == Hierarchy.model_fields["rows"].default.name else of(h.rows)
        return call(
            self.variables.public("Hierarchy"),
            name=quoted(h.name),
            fibrations=_list([self.fibration(f) for f in h.fibrations]),
            gates=_dict([(of(s), self.gate(s, g)) for s, g in h.gates.items()]) or "{}",
            decomposition=self.written(h.decomposition, "the decomposition"),
            objective=self.written(h.objective, "the objective", OF_TOKENS),
            rows=rows,
            groups=_list([of(s) for s in h.groups]),
            advantages=None if h.advantages is None else self.argument(h.advantages, "advantages"),
            penalties=_dict([(quoted(name), self.penalty(name, p)) for name, p in h.penalties.items()]),
            assume=_list([self.assumption(a) for a in h.assume]),
            orthogonalise=None if h.orthogonalise is None else quoted(h.orthogonalise),
            gives_up=_dict([(quoted(law), quoted(reason)) for law, reason in h.gives_up.items()]),
        )

    def fibration(self, f: Fibration) -> str:
        def argument(formula: Expression, role: str) -> str:
            return self.argument(with_strata(formula, f.source, f.target), role)

        here, of = f"the kernel {f.name}", self.variables.of
        kernel = self.written(f.kernel, here, f"kernel_of_{f.source}", argument)
        return call(self.variables.public("Fibration"), of(f.source), of(f.target), kernel=kernel)

    def gate(self, stratum: Stratum, gate: Gate) -> str:
        if not isinstance(gate, GatePerChannel):
            return self.written(gate, f"the gate on {stratum}", f"gate_of_{stratum}")
        return f'{{"+": {self.gate(stratum, gate.plus)}, "-": {self.gate(stratum, gate.minus)}}}'

    def penalty(self, name: str, penalty: Penalty) -> str:
        formula = self.argument(penalty.formula, name)
        if penalty.objective is None and penalty.over is None:
            return formula
        own, over, what = penalty.objective, penalty.over, f"the objective of the penalty '{name}'"
        return call(
            self.variables.public("Penalty"),
            formula,
            over=None if over is None else self.variables.of(over),
            objective=None if own is None else self.written(own, what, OF_TOKENS),
        )

    def assumption(self, assumption: Assumption) -> str:
        of = self.variables.of
        if isinstance(assumption, Balanced):
            return call(self.variables.public("balanced"), of(assumption.first), of(assumption.second))
        return call(self.variables.public("populated"), of(assumption.stratum), over=of(assumption.over))

    def written(self, value: Written, what: str, role: str = "", argument: Argument | None = None) -> str:
        """Returns the call that made an object, read from the text that the object keeps of it.

        `role` is the variable of a formula that is the whole argument, `argument` writes formulas.
        """
        here, argument = f"hierarchy '{self.h.name}': {what}", argument or self.argument
        made = read(value.written, here)
        assert isinstance(made, Invocation), value.written
        if made.name in CONSTRUCTORS:
            roles = list(inspect.signature(CONSTRUCTORS[made.name].function).parameters)
        else:
            roles = [role]
        public = self.variables.public(made.name)
        if isinstance(value, (Objective, MarkovKernel)) and made.name == type(value).__name__:
            text = call(public, argument(value.weight, role))  # the text of places cannot be read
        else:
            text = self.invocation(public, made, here, roles, argument)
        methods = (self.invocation(m.name, m, here, [METHODS.get(m.name, "")], argument) for m in made.methods)
        return ".".join([text, *methods])

    def invocation(self, function: str, made: Invocation, here: str, roles: list[str], argument: Argument) -> str:
        positional, named = arguments(made, self.words, here)
        given = [self.value(v, roles[i], argument) for i, v in enumerate(positional)]
        return call(function, *given, **{key: self.value(v, key, argument) for key, v in named.items()})

    def value(self, value: object, role: str, argument: Argument) -> str:
        if isinstance(value, Expression):
            return argument(value, role)
        return quoted(value) if isinstance(value, str) else str(value)


def _list(items: Sequence[str]) -> str | None:
    return f"[{', '.join(items)}]" if items else None


def _dict(items: Sequence[tuple[str, str]]) -> str | None:
    return f"{{{', '.join(f'{key}: {value}' for key, value in items)}}}" if items else None


# ---------------------------------------------------------------- above the hierarchy


def _declared(h: Hierarchy, variables: Variables) -> Iterator[str]:
    """Yields the lines that declare strata, policies, attributes and parameters."""
    numbers: list[tuple[Object, str]] = [(a, _attribute(a, variables)) for a in h.attributes.values()]
    used = [value for value in variables.used if isinstance(value, Parameter)]
    numbers += [(p, _parameter(p, variables)) for p in used]
    objects = [o for o in variables.objects if o in variables.used]
    yield from _several([s for s in objects if isinstance(s, Stratum)], "strata", "Stratum", variables)
    yield from _several([p for p in objects if isinstance(p, Policy)], "policies", "Policy", variables)
    yield from (assignment(variables.of(value), document) for value, document in numbers)


def _several(values: Sequence[Stratum | Policy], function: str, one: str, variables: Variables) -> Iterator[str]:
    """Yields `a, b = strata("a b")`, in as many lines as their width takes."""
    rest = list(values)
    while rest:
        for n in range(len(rest), 0, -1):
            names, words = ", ".join(map(variables.of, rest[:n])), " ".join(v.name for v in rest[:n])
            line = f'{names if n > 1 else f"({names},)"} = {function}("{words}")'
            if len(line) <= WIDTH:
                variables.public(function)
                yield line
                break
        else:  # not even one name fits beside itself
            yield assignment(variables.of(rest[0]), call(variables.public(one), quoted(rest[0].name)))
        rest = rest[n:]


def _attribute(a: Attribute, variables: Variables) -> str:
    return call(
        variables.public("Attribute"),
        quoted(a.name),
        on=variables.of(a.on),
        positive=None if a.positive else "False",
        lower=_float(a.lower),
        upper=_float(a.upper),
    )


def _parameter(p: Parameter, variables: Variables) -> str:
    each = [(quoted(channel), number(value)) for channel, value in p.default_items()]
    return call(
        variables.public("Parameter"),
        quoted(p.name),
        default=_dict(each) if isinstance(p.default, dict) else _float(p.default),
        lower="None" if p.lower is None else _float(p.lower) if p.lower != 0 else None,
        upper=_float(p.upper),
        per_channel="True" if p.per_channel else None,
        on=None if p.on is None else variables.of(p.on),
    )


def _float(value: float | None) -> str | None:
    return None if value is None else number(value) if math.isfinite(value) else f'float("{value}")'


def _imports(names: set[str]) -> str:
    standard = "".join(f"from {STANDARD[name]} import {name}\n\n" for name in sorted(names & STANDARD.keys()))
    ours = ", ".join(sorted(names - STANDARD.keys()))
    line = f"from fibration import {ours}"
    return standard + (line if len(line) <= WIDTH else f"from fibration import {laid(f'({ours})', is_broken=True)}")
