"""Slips in the operator and its batches."""

from slips.slip import slip

SLIPS = (
    slip(
        "doubling forgets that discounts are squared", "test_order",
        "share, reach = share * share, 2 * reach", "share, reach = share, 2 * reach",
    ),
    slip(
        "doubling reaches into the row before", "test_order",
        "x = torch.where(room >= reach, x + share", "x = torch.where(room >= 1, x + share",
    ),
    slip(
        "what is put together is not written back", "backends*ranks",
        "bound.vector_of(node, work, batch).copy_(whole)", "vectors[node] = whole",
    ),
    slip(
        "metrics of elements lie element by element", "backends/test_shipped backends/test_chains runtime/test_scalars",
        ".view(rows, elements)\n", ".view(elements, rows).T\n",
    ),
    slip(
        "a metric is the one beside it", "backends/test_c.py runtime/test_metrics",
        "torch.tensor([rows_of[wanted[i][0]][1] for i in block])", "torch.tensor([rows_of[wanted[i][0]][1] - 1 for i in block]).abs()",
    ),
    slip(
        "metrics with a count of their own share its memory", "runtime/test_scalars",
        "counter = start[next(counters)] if isinstance", "counter = start[len(rows)] if isinstance",
    ),
    slip(
        "counts of single elements are those of the first", "runtime/test_metrics",
        "return counted(self.index, of, over)[element].clone()", "return counted(self.index, of, over)[0].clone()",
    ),
    slip(
        "a quantile lies at its level of n numbers, not of the n - 1 between them", "backends*quantiles",
        "place = level * last\n", "place = level * (last + 1)\n",
    ),
    slip(
        "a policy that no formula names is taken", "test_bad_input",
        "        if name not in known:\n            raise BatchError(\n                f\"no formula of", "        if False:\n            raise BatchError(\n                f\"no formula of",
    ),
    slip(
        "log ratios are taken in the precision of the log-probs", "hard_inputs",
        "return values.reshape(-1)[batch.index.positions_of(leaf)].double()",
        "return values.reshape(-1)[batch.index.positions_of(leaf)]",
    ),
    slip(
        "advantages per row are read by the number of the element", "hard_inputs test_operator test_shipped test_chains",
        "batch.advantage[index.row_tensor()[index.rows_of_tokens(node.over)]]", "batch.advantage[index.rows_of_tokens(node.over)]",
    ),
    slip(
        "a result is left as it is where no kernel fills it", "backends/test_layouts",
        "lay.positions is None and lay.tokens is None and len(", "lay.positions is None and len(",
    ),
    slip(
        "an advantage per trajectory is the least of its tokens'", "bad_input test_index_quiver hard_inputs",
        "torch.where(low == high, low, torch.nan).double()", "low.double()",
    ),
    slip(
        "a parameter per channel that requires grad is read as a number", "requires_grad",
        "        return any(map(requires_grad, value.values()))\n", "        return False\n",
    ),
    slip(
        "of policies that require grad the gradient is dropped", "requires_grad",
        'named.update({f"policies[{name!r}]": t for name, t in policies.items()})', "pass",
    ),
    slip(
        "what requires grad is refused where no gradient is recorded", "requires_grad hard_inputs",
        "            if graph:\n                refuse_graphs(program, parameters, policies, advantages=advantages, **tokens)",
        "            if True:\n                refuse_graphs(program, parameters, policies, advantages=advantages, **tokens)",
    ),
    slip(
        "a column of advantages is taken for a row", "bad_input",
        "{-1 if shape == (*one, 1) else 0}", "{0}",
    ),
    slip(
        "half precision is warned of whatever the gate", "test_precision",
        "if REACHES * moved > band:", "if moved:",
    ),
    slip(
        "rounding does not average over an element's tokens", "test_precision",
        "moved = each / math.sqrt(over)", "moved = each",
    ),
    slip(
        "every call warns of half precision", "test_precision",
        "            self._knows_rounding = True\n", "",
    ),
    slip(
        "a compiled call has the metrics of all words", "test_compiled",
        "metrics=call.asked, **call.more)", "**call.more)",
    ),
    slip(
        "a compiled loss has no share of a rank", "test_compiled",
        "return objective / -call.index.shares, result.values", "return -objective, result.values",
    ),
    slip(
        "a list of tensors has several gradients in a transform", "test_compiled",
        "tuple(None if isinstance(g, list) else g for g in found)", "found",
    ),
    slip(
        "a compiled gate's gradient forgets the parameters", "test_compiled",
        '    call = _call("gate", *given)\n    with torch.enable_grad():', '    call = _call("gate", *given)\n    call.more["parameters"] = {}\n    with torch.enable_grad():',
    ),
    slip(
        "a number's digits depend on what it is added to", "test_sums",
        "digit = np.trunc(", "digit = np.rint(",
    ),
    slip(
        "numbers by label are not checked", "runtime/test_parameters",
        " and not self.parameter.is_outside(np.array(found)).any():", ":",
    ),
    slip(
        "the channels of a pair are exchanged", "runtime/test_parameters",
        "value, what = value[CHANNELS.index(channel)]", "value, what = value[1 - CHANNELS.index(channel)]",
    ),
    slip(
        "a value of a channel may be in the order of elements", "runtime/test_parameters",
        "        if is_several(value):\n            raise in_order", "        if is_several(value) and what == \"the value\":\n            raise in_order",
    ),
    slip(
        "an element without a value has the default, whatever is said of all others", "runtime/test_parameters",
        "value.get(None, self.parameter.default)), **value}", "self.parameter.default), **value}",
    ),
    slip(
        "values by label are in the order in which they were written", "runtime/test_parameters",
        "found = [value[label] for label in numbers]", "found = [value[label] for label in value if label in numbers]",
    ),
    slip(
        "a slip in a label is another domain", "runtime/test_parameters",
        "if known or looks_like(str(one), str(label))]", "if known]",
    ),
    slip(
        "metrics of micro-batches are averaged", "metrics",
        "return Mean(self.sum + other.sum, self.count + other.count)",
        "return Mean(self.sum / self.count + other.sum / other.count, torch.tensor(2.0))",
    ),
    slip(
        "the smaller of two minima is lost", "metrics",
        "pick = torch.maximum if self.largest else torch.minimum", "pick = torch.maximum",
    ),
    slip(
        "a tensor of parameters that was changed in place is taken for what it was", "test_parameters",
        "if version is None or version != known:", "if version is None or known is None:",
    ),
    slip(
        "parameters are kept under their numbers, whatever elements have them", "test_parameters",
        'key = f"{index.device} {shapes} {', 'key = f"{index.device} {',
    ),
    slip(
        "a recorded graph reads parameters that are forgotten later", "test_parameters",
        "index.keep(key, made)", "index.keep(key, ())",
    ),
    slip(
        "parameters are copied to the device in every call", "test_issued_operations",
        "made = _MADE.get(key, make)", "made = make()",
    ),
    slip(
        "a device is asked whether rows and tokens agree", "test_issued_operations",
        "if not devices.can_sync(index.device):\n            same", "if devices.can_sync(index.device):\n            same",
    ),
    slip(
        "a gradient that another pass needs is handed out", "test_backward",
        "return known.to(dtype, copy=_graph_is_kept())", "return known.to(dtype)",
    ),
    slip(
        "parameters of the last call serve every other", "test_parameters",
        "return type(given), given or repr(given)", "return type(given), 0",
    ),
    slip(
        "ranks may ask for different metrics", "ranks/test_calls",
        'said |= {"the metrics asked for": ", ".join(sorted(asked)) or "none"}', "pass",
    ),
    slip(
        "an incoming gradient is taken for 1", "test_backward",
        "if devices.can_sync(times.device) and times.item() == 1.0:", "if devices.can_sync(times.device):",
    ),
    slip(
        "maxima of elements are added up", "test_metrics",
        'Push(over, BATCH, node, "max" if word == "peak" else "sum")', 'Push(over, BATCH, node, "sum")',
    ),
    slip(
        "the smallest ratio is shown negated", "test_metrics",
        'Map(scalar("neg", arg(0)), (_largest(extremes["min"]),))', '_largest(extremes["min"])',
    ),
    slip(
        "single elements come where their level alone is asked for", "test_scalars",
        "return row.group in asked and row.over in asked", "return row.group in asked",
    ),
    slip(
        "means over nothing are logged as 0", "test_scalars",
        "            if count:\n                found[prefix + e.name] = value / count", "            found[prefix + e.name] = value / max(count, 1)",
    ),
    slip(
        "a row's reward counts as often as it has tokens", "test_bad_rewards",
        "            if per_row and not index.rows_are_tokens():\n", "            if False:\n",
    ),
    slip(
        "every rank's loss is that of the whole batch", "test_calls",
        "result.objective, index.shares)", "result.objective, 1.0)",
    ),
    slip(
        "parameters may differ between ranks", "test_calls",
        "                said |= call_description(self.hierarchy, declared, index, ranks, parameters)\n", "",
    ),
    slip(
        "the rank whose value is not finite raises alone", "test_calls",
        'with agreed(group, f"what is not finite in {CALLS[program]}', 'with agreed(None, f"what is not finite in {CALLS[program]}',
    ),
    slip(
        "the gate's backward says no word", "test_calls",
        'agree(ranks.group, CALLS["gate_adjoint"], {})', "pass",
    ),
    slip(
        "pieces of a row may have different advantages", "test_calls",
        '            batch = check_rows_agree(batch, index, ranks, "advantage", rows)\n', "            pass\n",
    ),
    slip(
        "advantages of this rank's rows are taken for those of all rows", "test_calls",
        "if of_rows and stratum == index.hierarchy.rows.name and index.ranks is None:",
        "if of_rows and stratum == index.hierarchy.rows.name:",
    ),
    slip(
        "terms beyond what is added up exactly go on as NaN", "test_calls",
        "if BEYOND in outputs and outputs.number(BEYOND) > 0:", "if BEYOND in outputs and float(outputs[BEYOND]) < 0:",
    ),
    slip(
        "of advantages that vary one is picked", "test_nonfinite",
        "result = torch.where(low == high, low, torch.nan)", "result = low",
    ),
    slip(
        "of what may be per token or per row one is picked", "test_nonfinite",
        "same = torch.where(one == other, one, torch.nan).to(flat.dtype)", "same = one.to(flat.dtype)",
    ),
    slip(
        "what is dropped keeps its weight in tables", "plotting/test_policies",
        "return np.where(self.kept, reduce(np.multiply, self.each, np.ones(len(self.kept))), 0.0)",
        "return reduce(np.multiply, self.each, np.ones(len(self.kept)))",
    ),
    slip(
        "penalties of elements are counted by rows", "test_penalties",
        "return hierarchy.rows if penalty.over is None else penalty.over", "return hierarchy.rows",
    ),
    slip(
        "policies that penalties read are read by nobody", "test_penalties",
        "read += [(f\"the penalty '{name}'\", e) for e in (penalty.formula, *weighed)]", "pass",
    ),
    slip(
        "advantages of rows are in the order of those with tokens", "test_rewards",
        "found[index.row_tensor()[places]] = values.expand(index.size[rows])[elements]", "found[places] = values.expand(index.size[rows])[elements]",
    ),
    slip(
        "whoever holds rows of one token says that rewards are per token", "ranks/test_rewards",
        "per_token = shape == index.shape and not index.rows_are_tokens()", "per_token = shape == index.shape",
    ),
    slip(
        "every rank reads rewards as it has them", "ranks/test_rewards",
        "is_per_row(index, rewards, group)", "is_per_row(index, rewards)",
    ),
    slip(
        "advantages beside rewards are what is read", "test_bad_rewards",
        "            refuse_both(self.hierarchy, advantages)\n", "",
    ),
    slip(
        "a second call does not look at dtypes", "runtime/test_prepared",
        "tensor.dtype is not dtype or tensor.shape != shape", "tensor.shape != shape",
    ),
    slip(
        "a second call does not look at shapes", "runtime/test_prepared",
        "tensor.dtype is not dtype or tensor.shape != shape", "tensor.dtype is not dtype",
    ),
    slip(
        "a second call takes tensors of any strides", "runtime/test_prepared",
        "found = [(i, tensors[name].contiguous()) for", "found = [(i, tensors[name]) for",
    ),
    slip(
        "a second call takes tensors of any device", "runtime/test_prepared",
        "tensor.layout is not torch.strided or tensor.device != device:", "tensor.layout is not torch.strided:",
    ),
    slip(
        "a second call drops gradients in silence", "runtime/test_prepared",
        'if graph and tensor.requires_grad and name != "log_probs":', "if False:",
    ),
    slip(
        "a second call takes tensors that nothing reads", "runtime/test_prepared",
        "if len(tensors) != len(self.needs):", "if False:",
    ),
    slip(
        "a second call that is not finite goes on", "runtime/test_prepared",
        "return None if made.looks and outputs.number(NONFINITE) > 0 else (made, outputs)", "return made, outputs",
    ),
    slip(
        "frozen sums of the first call stay", "runtime/test_prepared",
        'if program == "micro" or devices.is_recording()', "if devices.is_recording()",
    ),
    slip(
        "advantages with two readings are compared once", "runtime/test_prepared",
        "devices.is_recording() or has_two_readings(batch, index)", "devices.is_recording()",
    ),
    slip(
        "calls with other parameters are of one kind", "runtime/test_prepared",
        "return calls, metrics, numbers", "return calls, metrics",
    ),
    slip(
        "calls with other metrics are of one kind", "runtime/test_prepared",
        "return calls, metrics, numbers", "return calls, numbers",
    ),
    slip(
        "calls of all operators are of one kind", "runtime/test_prepared",
        "return calls, metrics, numbers", "return metrics, numbers",
    ),
    slip(
        "exchanged arguments are noticed in a first call alone", "runtime/test_bad_input",
        "return not looks_exchanged or exchanged(", "return True or exchanged(",
    ),
    slip(
        "what lies under the mask tells log-probs from advantages", "runtime/test_bad_input",
        "if bool((_unmasked(tensor, index) > limit).any()):", "if bool((tensor > limit).any()):",
    ),
    slip(
        "an index keeps all kinds of calls", "runtime/test_prepared",
        "if len(kept) >= MANY:", "if False:",
    ),
    slip(
        "what runs torch code keeps its index alive", "runtime/test_prepared",
        "index, computed = weakref.ref(batch.index),", "index, computed = (lambda at=batch.index: at),",
    ),
    slip(
        "advantages per row stay those of the first call", "runtime/test_prepared",
        "tensors = {**tensors, GIVEN_TENSOR: spread(tensors[GIVEN_TENSOR])}", "tensors = {**tensors, GIVEN_TENSOR: spread(batch.advantage)}",
    ),
    slip(
        "a loss is returned with its sign turned", "runtime/test_prepared runtime/test_backward",
        "return objective.neg() if scale == 1", "return objective.clone() if scale == 1",
    ),
    slip(
        "a gradient is handed out though the graph is kept", "runtime/test_backward runtime/test_requires",
        "return known.to(dtype, copy=_graph_is_kept())", "return known.to(dtype)",
    ),
    slip(
        "metrics under torch.compile have no place for counts of their own", "runtime/test_compiled",
        "+ isinstance(row.count, Key) for row", "for row",
    ),
)  # fmt: skip
