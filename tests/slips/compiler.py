"""Slips in `fibration/compiler`."""

from slips.slip import slip

SLIPS = (
    slip(
        "the pull on a level is a sum of squares over tokens, not of means over its elements", "metrics_of_pulls",
        "[(received[Key(RECEIVED, leaf.name, channel)], self.path(leaf, stratum)) for leaf in leaves]",
        "[(received[Key(RECEIVED, leaf.name, channel)], [leaf.name]) for leaf in leaves]",
    ),
    slip(
        "pulls on all levels are relative to those on one leaf", "metrics_of_pulls",
        "added([found[leaf] for leaf in hierarchy.leaves])", "found[hierarchy.leaves[0]]",
    ),
    slip(
        "what only the objective reads is not coupled", "compiler/test_coupling",
        "read = {*replace(self.program, outputs=outputs).nodes(), *self._behind([*j.added, *j.factors])}",
        "read = {*replace(self.program, outputs=outputs).nodes()}",
    ),
    slip(
        "a mean that one level adds and the next one subtracts is read", "compiler/test_coupling",
        "return {o: times for o, times in found.items() if times}", "return dict(found)",
    ),
    slip(
        "a threshold does not move with the log-probs that it is taken of", "compiler/test_coupling",
        "not self.moving.isdisjoint(n.operands)", "not isinstance(n, Quantile) and not self.moving.isdisjoint(n.operands)",
    ),
    slip(
        "a frozen sum is of the micro-batch", "runtime/test_micro",
        "    frozen = _Analysis(program, hierarchy).frontier()\n", "    frozen: list[Node] = []\n",
    ),
    slip(
        "what reads a quantile is computed in the tokens' precision", "backends*quantiles",
        "wanted = {n for n in step.values if n in self._compared or n in self._reading}",
        "wanted = {n for n in step.values if n in self._compared}",
    ),
    slip(
        "the values of a row count once in a mean over groups", "backends*rewards",
        'away = ir.scalar("mul", ir.arg(0), ir.scalar("sub", ir.arg(1), ir.arg(2)))',
        'away = ir.scalar("sub", ir.arg(1), ir.arg(2))',
    ),
    slip(
        "a quantile over part of a segment's tokens is taken inside its sweep", "backends*quantiles",
        "return all(self.primary[leaf] == node.target for leaf in node.sources) and not self._cut(node.target)",
        "return all(self.primary[leaf] == node.target for leaf in node.sources)",
    ),
    slip(
        "the residual is taken against the gated base", "vectors gradients test_quivers",
        's = self.named(residuals[name], "residual", name, channel)',
        's = self.named(next((binary("sub", self.density[name, channel], self.broadcast(down[u.name, channel], name)) '
        'for u in self.shape.coarser(stratum)), residuals[name]), "residual", name, channel)',
    ),
    slip(
        "levels between root and leaf are dropped", "vectors gradients test_quivers",
        'down[name, channel] = self.named(level, "down", name, channel)',
        'down[name, channel] = self.named(level if name in self.leaves else '
        'outputs[Key("gated", name, channel)], "down", name, channel)',
    ),
    slip(
        "a residual is taken against the coarser residual", "vectors test_quivers",
        "for node, sign in self.coarser(stratum, density):", "for node, sign in self.coarser(stratum, {**density, **found}):",
    ),
    slip(
        "the score estimator differentiates its ratio", "vectors laws*first_order test_quivers",
        'binary("mul", Detach(ratio), advantage)', 'binary("mul", ratio, advantage)',
    ),
    slip(
        "the adjoint of a broadcast is a maximum", "gradients test_adjoint",
        "return [(node.operand, Push(node.source, node.target, cotangent))]",
        'return [(node.operand, Push(node.source, node.target, cotangent, "max"))]',
    ),
    slip(
        "the adjoint of a matrix is the matrix", "backends*quivers test_adjoint",
        "Mix(node.into, node.of, cotangent, not node.transposed)", "Mix(node.into, node.of, cotangent, node.transposed)",
    ),
    slip(
        "a contribution that comes twice counts once", "test_adjoint gradients",
        "weights = [nodes.count(n) for n in unique]", "weights = [1 for n in unique]",
    ),
    slip(
        "behind a closed gate 0·inf is NaN", "hard_inputs gradients test_adjoint test_optimise",
        'product = scalar("select", closed, ZERO, product)', "product = times(slope, received)",
    ),
    slip(
        "what flows back along an order goes the way it came", "test_adjoint test_order",
        "Scan(s, node.target, given, node.discount, not node.forward)",
        "Scan(s, node.target, given, node.discount, node.forward)",
    ),
    slip(
        "what flows back along an order comes from every leaf", "test_adjoint",
        "cotangent if s == node.into else Const(0.0, s)", "cotangent if s == node.into else Const(1.0, s)",
    ),
    slip(
        "gradients flow through the order that a gate reads", "test_order",
        "{a: Detach(self.atom(a, stratum.name)) for a in atoms(formula, Ordered)",
        "{a: self.atom(a, stratum.name) for a in atoms(formula, Ordered)",
    ),
    slip(
        "a sweep takes sums along others than its segments", "test_order",
        "self.along = own - self._read_elsewhere()", "self.along = own",
    ),
    slip(
        "a quantile of sums is taken before they are set aside", "test_order",
        "if node in self.within and not all(v in known for v in node.operands[:-1])", "if False",
    ),
    slip(
        "what a prefix is compared with is rounded", "test_order",
        "isinstance(n, Map) and n.stratum in leaves and _jumps_by_order(n)}", "False}",
    ),
    slip(
        "interning forgets a reduction", "test_ir.py test_lower test_operator",
        "else v) for v in given])", 'else v) for v in given if v not in ("sum", "max")])',
    ),
    slip(
        "x - x is 0 for infinities too", "hard_inputs bad_input test_optimise test_rules",
        "return a if b is ZERO else _rule(scalar(\"neg\", b)) if a is ZERO else s",
        "return ZERO if a is b else a if b is ZERO else _rule(scalar(\"neg\", b)) if a is ZERO else s",
        "    Rule(sub(X, ZERO), X),\n", "    Rule(sub(X, ZERO), X),\n    Rule(sub(X, X), ZERO),\n",
    ),
    slip(
        "0 - x is x", "test_rules test_optimise",
        '_rule(scalar("neg", b)) if a is ZERO else s', "b if a is ZERO else s",
        "    Rule(sub(ZERO, X), neg(X)),\n", "    Rule(sub(ZERO, X), X),\n",
    ),
    slip(
        "a compared choice has one condition for both branches", "test_rules test_optimise gradients",
        '_rule(scalar("and", _rule(scalar("not", condition)), b))', '_rule(scalar("and", condition, b))',
        "Rule(lt(select(C, P, Q), K), either(both(C, lt(P, K)), both(no(C), lt(Q, K)))),",
        "Rule(lt(select(C, P, Q), K), either(both(C, lt(P, K)), both(C, lt(Q, K)))),",
    ),
    slip(
        "the maximum of -x is minus that of x", "metrics test_optimise test_operator",
        'if isinstance(node, Push) and node.reduce == "sum" and isinstance(x := node.operand, Map) and x.body.op == "neg":',
        'if isinstance(node, Push) and isinstance(x := node.operand, Map) and x.body.op == "neg":',
    ),
    slip(
        "a token with a channel that passed is not clipped", "metrics test_operator test_quivers",
        'body = functools.reduce(partial(scalar, "mul"), map(arg, range(len(every_channel))))', 'body = reduce(partial(scalar, "add"), map(arg, range(len(every_channel))))',
    ),
    slip(
        "what a coarse stage reads of other ranks' rows is not gathered", "compiler*plans_on_ranks runtime*rank_results runtime*rank_index",
        "waiting |= {n: None for n in mine if n in read or spread.cuts(n, program.leaves)}",
        "waiting |= {n: None for n in mine if spread.cuts(n, program.leaves)}",
    ),
    slip(
        "an advantage is read of rows that other ranks have", "compiler*plans_on_ranks",
        'n: None for n in program.inputs if n.kind in GIVEN and', 'n: None for n in program.inputs if not n.kind and',
    ),
    slip(
        "a sum over cut rows is one rank's", "compiler*plans_on_ranks runtime*rank_results runtime*rank_index",
        "return over_tokens and node.stratum not in self.whole", "return over_tokens and not node.stratum",
    ),
    slip("parts of a term are too large to add up exactly", "compiler*plans_on_ranks", "RANGE = 2.0**69", "RANGE = 2.0**72"),
    slip(
        "units lie further apart than a part's sum has room for", "compiler*plans_on_ranks",
        "UNITS = (2.0**40, 2.0**10, 2.0**-20,", "UNITS = (2.0**40, 2.0**10, 2.0**-24,",
    ),
    slip(
        "a term out of range is summed as if it were in it", "compiler*plans_on_ranks",
        'body = rounded if found else scalar("select", inside, rounded, const(float("nan")))', "body = rounded",
    ),
    slip(
        "fractions count as whole numbers", "compiler*plans_on_ranks",
        "return abs(value) if value == value and abs(value) <= SMALL and value == int(value) else None",
        "return abs(value) if value == value and abs(value) <= SMALL else None",
    ),
    slip(
        "a gradient flows through weights and conditions", "test_weights_and_statistics",
        "self.read[key] = Detach(node)", "self.read[key] = node",
    ),
    slip(
        "a gradient flows through statistics", "test_weights_and_statistics",
        "return Detach(found)", "return found",
    ),
    slip(
        "what is dropped is multiplied by 0", "test_weights_and_statistics",
        'return Map(scalar("select", scalar("lt", ZERO, arg(0)), arg(1), ZERO), (kept, node))',
        'return Map(scalar("mul", arg(0), arg(1)), (kept, node))',
    ),
    slip(
        "μ counts kept tokens where all are to be counted", "test_weights_and_statistics",
        'conditions = [k.condition for k in objective.kept if k.normaliser == "kept"]',
        "conditions = [k.condition for k in objective.kept]",
    ),
    slip(
        "a statistic is compared in the tokens' precision", "test_weights_and_statistics",
        "coarse = place not in (None, leaf) and not any(a in known for a in read)", "coarse = False",
    ),
    slip(
        "statistics are summed in the tokens' precision", "test_weights_and_statistics",
        "if isinstance(n, Push) and (n.wide or n in cut)", "if isinstance(n, Push) and n in cut",
    ),
    slip(
        "what a quantile still needs of a row is not saved for it", "test_weights_and_statistics",
        "[n for _, n in self.stores] + self.asides", "[n for _, n in self.stores]",
    ),
    slip(
        "weights of dropped tokens are to be finite", "test_weights_and_statistics",
        'return {leaf: where_kept(program.outputs.get(program.part("kept", leaf)), w) for leaf, w in found.items()}',
        "return found",
    ),
    slip(
        "what is counted once over each element is counted once", "test_weights_and_statistics",
        'found: Node = binary("mul", one, ir.count_input(source, target))', "found: Node = one",
    ),
    slip(
        "what nothing lies over has a largest", "test_empty_branches",
        "if not self.may_be_empty(source, target):", "if reduce == 'max' or not self.may_be_empty(source, target):",
    ),
    slip(
        "metrics of weights have the weights of dropped tokens", "test_metrics",
        "weights = {leaf: where_kept(kept[leaf], program.outputs[program.part(word, leaf)])", "weights = {leaf: program.outputs[program.part(word, leaf)]",
    ),
    slip(
        "the log ratio of a formula is the other way round", "test_weights_and_statistics",
        "BEFORE - NOW: -token_log_ratio", "BEFORE - NOW: token_log_ratio",
    ),
    slip(
        "results at tokens that are not finite are what a gate makes of them", "test_nonfinite",
        "_unless(nothing[v.stratum], v) if v.stratum in nothing else v for", "v for",
    ),
    slip(
        "the objective is what gates make of NaN", "test_nonfinite",
        'outputs = {k: _unless(counted, v) if k == Key("objective") else v for k, v in program.outputs.items()}',
        "outputs = program.outputs",
    ),
    slip(
        "NaN is added to results", "test_nonfinite",
        "    return Map(UNLESS, (node, nothing))", '    return Map(scalar("add", arg(0), arg(1)), (node, nothing))',
    ),
    slip(
        "advantages of coarser elements are not looked at", "test_nonfinite",
        "if node.stratum in (leaf.name, BATCH) or Stratum(node.stratum) in hierarchy.coarser(leaf):",
        "if node.stratum == leaf.name:",
    ),
    slip(
        "a penalty is added to the objective",
        "test_penalties",
        'return binary("sub", objective, added(list(found.values.values())))',
        'return binary("add", objective, added(list(found.values.values())))',
    ),
    slip(
        "a penalty's own objective is not read",
        "test_penalties",
        "objective = penalty.objective or self.h.objective.of_penalties",
        "objective = self.h.objective.of_penalties",
    ),
    slip(
        "no gradient flows through the means that a penalty reads",
        "test_penalties",
        'return found if atom.kind in ("total", "mean") else Detach(found)',
        "return Detach(found)",
    ),
    slip(
        "a gradient flows through the weights of a penalty",
        "test_penalties",
        "inputs = (*inputs, Detach(self.tokens(weight, leaf)))",
        "inputs = (*inputs, self.tokens(weight, leaf))",
    ),
    slip(
        "a penalty of what is not kept is taken off too",
        "test_penalties",
        "body, ZERO)\n        return inputs[0]",
        "body, body)\n        return inputs[0]",
    ),
    slip(
        "a penalty that is infinite is no error", "test_penalties",
        'if key.word.startswith("term_"):', 'if key.word.startswith("no_term_"):',
    ),
    slip(
        "what a penalty does not keep is divided by behind its sums", "test_penalties",
        '("div" in read and drops)', '("div" in read and False)',
    ),
    slip(
        "the slope of a divergence is nothing where policies are near", "test_rules test_penalties",
        "Rule(add(neg(exp(X)), ONE), neg(expm1(X)), SHARPER),", "Rule(add(neg(exp(X)), ONE), sub(ONE, exp(X)), ANY),",
    ),
    slip(
        "a penalty over elements is their sum", "test_penalties",
        'mean = ir.scalar("div", ir.arg(0), ir.arg(1))', "mean = ir.arg(0)",
    ),
    slip(
        "a mean of equal elements is rounded", "test_element_statistics",
        "        return atom.of is not None\n", "        return False\n",
    ),
    slip(
        "a deviation is by n", "test_element_statistics",
        'ir.scalar("div", ir.arg(0), ir.scalar("sub", ir.arg(1), ir.const(1)))', 'ir.scalar("div", ir.arg(0), ir.arg(1))',
    ),
    slip(
        "one alone has no deviation", "test_element_statistics",
        'alone = ir.scalar("le", ir.arg(1), ir.const(1))', 'alone = ir.scalar("le", ir.arg(1), ir.const(0))',
    ),
    slip(
        "an element is among the others", "test_element_statistics",
        'total = binary("sub", self.broadcast(total, own.source), own.values)', "total = self.broadcast(total, own.source)",
    ),
    slip(
        "tokens of a group are counted where elements count once", "test_element_statistics",
        "of = self.leaves_over(over) if atom.of is None else (str(atom.of),)", "of = self.leaves_over(over)",
    ),
    slip(
        "rewards of rows are read at every token", "test_rewards",
        "return self.rows if self.by_row and atom == reward else super().place(atom, stratum)", "return super().place(atom, stratum)",
    ),
    slip(
        "a row counts once in a mean of tokens", "test_rewards",
        "self.elements(written, str(place)), ir.count_input(leaf, str(place))", "self.elements(written, str(place))",
    ),
    slip(
        "what is a token's own is read of its row", "test_rewards",
        "len(written) == 1 and all(self.lies_over(self.rows, s) for s in read)", "len(written) == 1 and bool(read)",
    ),
    slip(
        "a reward that is not finite may become a finite advantage", "test_bad_rewards",
        'kept = ir.scalar("select", ir.scalar("le", nothing, ZERO), ir.arg(1), ir.const(float("nan")))', "kept = ir.arg(1)",
    ),
    slip(
        "a sum over an element needs one advantage of 0", "runtime/test_live",
        "return Advantages(a.leaf, target if target in self.under[a.over] else BATCH)", "return a",
    ),
    slip(
        "a penalty that is not 0 leaves rows dead", "runtime/test_live",
        "found[node.stratum] = ways if value == 0.0 else frozenset()", "found[node.stratum] = ways or ALWAYS",
    ),
    slip(
        "a row lives if its last token does", "runtime/test_live",
        "rows.index_add_(0, index.row_tensor()[index.rows_of_tokens(leaf)], alive.long())",
        "rows[index.row_tensor()[index.rows_of_tokens(leaf)]] = alive.long()",
    ),
    slip(
        "a comparison with log(0) is left to the backends", "compiler/test_optimise",
        "if s.op in CONDITIONS and is_closed(s):", 'if s.op in CONDITIONS and all(a.op == "const" for a in s.args):',
    ),
    slip(
        "a factor of one branch leaves the sum", "compiler/test_hoist",
        "is_common = x.factor is y.factor or zeros", "is_common = True",
    ),
    slip(
        "any factor leaves a maximum", "compiler/test_hoist",
        'push.reduce == "max" and not (found.is_positive and alone)', 'push.reduce == "max" and not alone',
    ),
    slip(
        "an element without tokens gets its factor times 0", "compiler/test_hoist",
        "    alone = len(leaves) == 1  #", "    alone = True  #",
    ),
    slip(
        "what a divisor shares leaves the sum as a factor", "compiler/test_hoist",
        '    if op == "div" and y.factor is not None:\n        return None\n', "",
    ),
    slip(
        "the sum of a batch is taken beside those of its rows", "compiler/test_hoist",
        "unchanged = {p for p in pushes if p.target == BATCH or (p.operand, BATCH) in sums}",
        "unchanged = {p for p in pushes if p.target == BATCH}",
    ),
    slip(
        "a value of all tokens is lost at one of them alone", "compiler/test_hoist",
        "    if found is None or not isinstance(value, Pull):\n", "    if True:\n",
    ),
    slip(
        "a value of the batch is computed for every row", "compiler/test_hoist",
        "for o in node.inputs} - {BATCH}", "for o in node.inputs}",
    ),
    slip(
        "sums of metrics decide which sums are in float64", "compiler/test_hoist",
        "shared = {k: n for k, n in program.outputs.items() if k.word in RESULTS}", "shared = dict(program.outputs)",
    ),
    slip(
        "exponentials are split whatever the parameters are", "compiler/test_split",
        "for name, channel, f in w) <= LIMIT for w", "for name, channel, f in w) <= 1e9 for w",
    ),
    slip(
        "one leaf's bound licenses all", "compiler/test_split",
        "return all(sum(f * of.get((name, channel)", "return any(sum(f * of.get((name, channel)",
    ),
    slip(
        "one leaf's bound is enough", "compiler/test_split",
        "return cls(widths) if len(widths) == leaves else None", "return cls(widths) if widths else None",
    ),
    slip(
        "a micro-batch is licensed by its own parameters", "compiler/test_split",
        "whole = values if step is None else", "whole = values if True else",
    ),
    slip(
        "a bound is licensed by one channel", "compiler/test_split",
        "found.append((parameter.name, channel, float(factor)))",
        'found.append((parameter.name, "+" if channel else "", float(factor)))',
    ),
    slip(
        "a subtracted summand is added", "compiler/test_split",
        '-sign if s.op == "neg" or (s.op == "sub" and i == 1) else sign', "sign",
    ),
    slip(
        "metrics of two programs lie in the places of one", "runtime/test_metrics",
        "index.kept((self, id(outputs.places.rows), program, asked), made)", "index.kept((self, program, asked), made)",
    ),
    slip(
        "0 has every factor, infinite ones too", "compiler/test_hoist",
        "found.chooses_0 and not factors.is_finite(found.factor)", "False",
    ),
    slip(
        "a choice of 0 is taken once per row", "compiler/test_hoist",
        " or _may_be_zero(node.body):", ":",
    ),
    slip(
        "the formula of a gate is cut", "compiler/test_split",
        "isinstance(found, Map) and found not in levels and _adds(", "isinstance(found, Map) and _adds(",
    ),
    slip(
        "a choice of 0 inside a product is forgotten", "compiler/test_hoist",
        "positive, x.chooses_0 or y.chooses_0)", "positive)",
    ),
)  # fmt: skip
