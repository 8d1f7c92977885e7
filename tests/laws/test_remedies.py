"""What the fix of a refusal says to write is accepted: the law then holds."""

import re
from dataclasses import replace

import pytest
from hierarchies.wrong_specs import wrong

import fibration
from fibration import (
    Fibration,
    Gate,
    MarkovKernel,
    Parameter,
    SpecError,
    clip_gate,
    count,
    exp,
    identity_gate,
    load,
    log_prob,
    log_ratio,
    policies,
    residual,
    strata,
    token_log_ratio,
    uniform,
    where,
)
from fibration.language.atoms import mass
from fibration.language.fixed import with_declared
from fibration.laws import LAWS
from fibration.laws.remedies import Fix, Otherwise, gate_to_write
from fibration.laws.subject import Subject

WRONG = wrong()
token, turn, trajectory = strata("token turn trajectory")
current, old, reference = policies("current old reference")


def verdict(h, law, subject):
    return next(v for v in h.verify().verdicts if (v.law, v.subject) == (law, subject))


def words(h):
    known = {n: getattr(fibration, n) for n in fibration.__all__} | {s.name: s for s in h.strata}
    known |= {name: policies(name)[0] for name in ("current", "old", *h.policies)}
    return known | dict(h.parameters) | dict(h.attributes) | {"mass": mass}


def mends(h, fix):
    """The hierarchies that the parts of a fix describe where a part is one declaration, each with the part."""
    known = words(h)
    for text in re.findall(r"declare ((?:Parameter|Attribute)\(.*?\))(?:;|$)", fix):
        made = eval(text, known)
        yield text, with_declared(h, {(h.parameters | h.attributes)[made.name]: made})
    for name, text in re.findall(r"write (\w+): ((?:Gate|\w+_gate)\(.*?\)) in gates", fix):
        (stratum,) = (s for s in h.strata if s.name == name)
        yield text, h.replace(gates={**h.gates, stratum: eval(text, known)})
    for text in re.findall(r"decomposition=(\w+\(.*?\)), whose", fix):
        yield text, h.replace(decomposition=eval(text, known))
    for text in re.findall(r"write (Fibration\(.*?\))(?:;|,? the share|$)", fix):
        made = eval(text, known)
        yield text, h.replace(fibrations=[made if f.name == made.name else f for f in h.fibrations])
    if "use uniform()" in fix or fix.startswith("write uniform()"):
        yield "uniform()", h.replace(fibrations=[Fibration(f.source, f.target, uniform()) for f in h.fibrations])
    for key in re.findall(r"^remove '(\w+)' from gives_up$", fix):
        yield fix, h.replace(gives_up={k: why for k, why in h.gives_up.items() if k != key})
    for text in re.findall(r"(?:^|; or )remove (Fibration\(.*?\)(?: and Fibration\(.*?\))*)(?=;|$)", fix):
        gone = [eval(f, known) for f in text.split(" and ")]
        left = list(h.fibrations)
        for f in gone:
            left.remove(f)
        met = {s for f in left for s in (f.source, f.target)} or h.gates.keys()
        yield text, h.replace(fibrations=left, gates={s: h.gates[s] for s in h.gates if s in met})
    for text in re.findall(r"(?:^|; or )add (?:[^;]*?: )?((?:strata|Fibration)\(.*?)(?=;|$)", fix):
        made = {s: strata(s)[0] for s in re.findall(r"strata\('(\w+)'\)", text)}
        edges = re.findall(r"(Fibration\(.*?kernel=.*?\)\))", text)
        gates = {made[s]: eval(g, known) for s, g in re.findall(r", (\w+): (\w+\(\)) in gates", text)}
        more = eval(f"[{''.join(re.findall(r'assume=.(.*).', text))}]", known)
        fibrations = [*h.fibrations, *(eval(e, known | made) for e in edges)]
        yield text, h.replace(fibrations=fibrations, gates={**h.gates, **gates}, assume=more or h.assume)
    if found := re.match(r"declare rows=(\w+)", fix):
        yield fix, h.replace(rows=known[found[1]])
    if fix.startswith("write orthogonalise=None"):
        yield fix, h.replace(orthogonalise=None)
    for text in re.findall(r"assume=\[(balanced\(.*?\))\],", fix):
        yield text, h.replace(assume=[*h.assume, *eval(f"[{text}]", known)])
    if fix.startswith("leave pull= out of inward()"):
        for s, gate in ((s, g) for s, g in h.gates.items() if "pull=" in str(g)):
            yield fix, h.replace(gates={**h.gates, s: eval(re.sub(r"pull=[^,()]*", "", str(gate)), known)})


ONE_DECLARATION = {"identity", "positivity", "recovery", "markov", "reflecting", "structure", "orthogonality", "inward"}


@pytest.mark.sampled
@pytest.mark.parametrize("name", WRONG)
def test_what_a_fix_says_to_write_mends_the_law(name):
    spec = WRONG[name]
    fix = verdict(spec.hierarchy, spec.law, spec.subject).remedy
    found = list(mends(spec.hierarchy, fix))
    if spec.law in ONE_DECLARATION and "clip(residual" not in fix:
        assert found, fix
    for text, mended in found:
        assert mended != spec.hierarchy
        left = [v for v in mended.verify().verdicts if (v.law, v.subject) == (spec.law, spec.subject)]
        assert all(v.status == "proved" for v in left), (text, left)


def test_a_bound_of_the_parameter_is_the_fix_of_a_gate_that_reaches_0():
    low = Parameter("low", default=0.2)
    h = load("grpo").replace(name="loose", gates={token: Gate(where(residual < -low / 2, -low, residual))})
    fix = verdict(h, "positivity", "hierarchy").remedy
    assert fix.startswith(
        "declare Parameter('low', default=0.2, upper=1); or gate log ratios: decomposition=log_ratio()"
    )
    assert [
        text for text, mended in mends(h, fix) if verdict(mended, "positivity", "hierarchy").status == "proved"
    ] == [
        "Parameter('low', default=0.2, upper=1)",
        "log_ratio()",
    ]


def test_a_gate_to_write_reads_nothing_else_that_it_may_not_read():
    """Of two slips in one gate, another atom in place of the first leaves the second."""
    one, two = residual * token_log_ratio, residual * token_log_ratio * exp(log_prob(current))
    fixes = [
        verdict(
            load("grpo").replace(name="raw", gates={token: Gate(g)}, gives_up={}), "locality", "gate on token"
        ).remedy
        for g in (one, two)
    ]
    assert fixes == ["write token: Gate(residual*residual) in gates; that is, read `residual`", "read `residual`"]


def test_a_bound_that_does_not_mend_the_law_is_not_offered():
    """Of `upper=1` and `lower=0` the second alone makes a budget positive."""
    loose = Parameter("loose", default=0.5, lower=-1)
    h = load("grpo").replace(name="loose", gates={token: clip_gate(loose)})
    fix = verdict(h, "identity", "gate on token").remedy
    assert fix.startswith("declare Parameter('loose', default=0.5, lower=0); or write token: identity_gate() in gates")


# Kernels of turns over a trajectory that do not reflect, and what the fix writes
KERNELS = {
    "a share of what is one more": (count(token, over=turn) / (count(token, over=trajectory) + 1), "count(token, over=turn)/count(token, over=trajectory)"),
    "equal parts of one more": (1 / (count(turn, over=trajectory) + 1), "1/count(turn, over=trajectory)"),
    "no sum in a formula": (exp(-count(token, over=turn)), None),
}  # fmt: skip


@pytest.mark.sampled
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_to_write_reflects(name):
    weight, written = KERNELS[name]
    edges = [Fibration(token, turn, uniform()), Fibration(turn, trajectory, MarkovKernel(weight))]
    gates = {token: clip_gate(0.2), turn: identity_gate(), trajectory: identity_gate()}
    h = load("reinforce").replace(fibrations=edges, gates=gates, decomposition=log_ratio(scale=mass), gives_up={})
    fix = verdict(h, "reflecting", "kernel turn → trajectory").remedy
    found = dict(mends(h, fix))
    offered = ["uniform()"] + [f"Fibration(turn, trajectory, MarkovKernel({written}))"] * (written is not None)
    assert sorted(found) == sorted(offered), fix
    for mended in found.values():
        assert verdict(mended, "reflecting", "kernel turn → trajectory").status == "proved"


def test_a_fix_with_which_the_law_fails_is_not_offered():
    """Of three fixes, one leaves the gate as it is and one cannot be declared."""
    h = load("grpo").replace(name="half", gates={token: Gate(residual / 2)}, gives_up={})

    def impossible():
        raise SpecError("no such gate")

    offers = (
        gate_to_write(h, token, Gate(residual / 3)),
        Fix("cannot be", impossible),
        gate_to_write(h, token, identity_gate()),
        Otherwise("do something else"),
    )
    for given, said in (
        (offers, "write token: identity_gate() in gates"),
        (offers[:2] + offers[3:], "do something else"),
    ):
        law = replace(LAWS["identity"], decisions=lambda s, o=given: _with(o, s))
        (found,) = law.decide(Subject(h, []))
        assert found.remedy == said


def _with(offers, subject):
    yield from (replace(d, remedy=offers) for d in LAWS["identity"].decisions(subject))


KINDS = {"k1": lambda d: d, "k3": lambda d: exp(-d) - 1 + d}


@pytest.mark.parametrize("kind", KINDS)
def test_a_penalty_without_the_gradient_is_called_by_its_name_and_k2_mends_it(kind):
    d = log_prob(current) - log_prob(reference)
    h = load("grpo").replace(name="penalised", penalties={"kl": 0.04 * KINDS[kind](d)})
    found = verdict(h, "kl_gradient", "penalty 'kl'")
    assert f"(0.04 times {kind} of reference)" in found.found
    fixes = [eval(text, words(h)) for text in re.findall(r"write (.*?)(?: \(k2\)|,|;)", found.remedy)]
    assert fixes[0] == d**2 / 2 and len(fixes) > 1
    for formula in fixes:
        mended = h.replace(penalties={"kl": 0.04 * formula})
        assert verdict(mended, "kl_gradient", "penalty 'kl'").status == "proved"


def test_of_a_penalty_whose_sign_alone_is_wrong_the_sign_is_turned():
    h = load("grpo").replace(name="rewarded", penalties={"kl": -(log_prob(current) - log_prob(reference)) ** 2 / 2})
    fix = verdict(h, "kl_gradient", "penalty 'kl'").remedy
    turned = fix.removeprefix("turn its sign, since a penalty is subtracted from the objective: ")
    mended = h.replace(penalties={"kl": eval(turned, words(h))})
    assert verdict(mended, "kl_gradient", "penalty 'kl'").status == "proved"
