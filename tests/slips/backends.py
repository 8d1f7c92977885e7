"""Slips in the backends."""

from slips.slip import slip

SLIPS = (
    slip(
        "a vector of sums hands on what is not discounted", "test_order",
        "(discounted ? powers[WIDTH] * carry : carry)", "carry",
    ),
    slip(
        "what comes after is left in the wrong order", "test_order",
        "shares[k] = powers[forward ? k + 1 : WIDTH - k];", "shares[k] = powers[k + 1];",
    ),
    slip(
        "a token is among those that come after it", "test_order",
        'places = "i" if node.forward else "(tokens - 1 - i)"', 'places = "i" if node.forward else "(tokens - i)"',
    ),
    slip(
        "the shape of a tile follows the tokens of this rank", "backends*ranks",
        "return self.ranks.tokens if self.ranks else sum(", "return sum(",
    ),
    slip(
        "the upper neighbour of a quantile may lie beyond the bound", "backends*quantiles",
        "} else if (k + next >= below + kept) {", "} else if (k >= below + kept) {",
    ),
    slip(
        "C finds a quantile among what is no number", "backends*quantiles",
        "    if (any_nan(x, n)) *at_k = *after = NAN;\n}", "}",
    ),
    slip(
        "C goes on with samples that do not help", "test_c_quantiles",
        "if (low == high || kept == n || poor > 4) {", "if (low == high || kept == n) {",
    ),
    slip(
        "C keeps what it finds over what it searches", "test_c_quantiles",
        "double *found = room + round % 2 * half;", "double *found = room;",
    ),
    slip(
        "C moves the kept values of a thread from where they go", "test_c_quantiles",
        "memmove(found + total, found + p * size, (size_t)kept[p]", "memmove(found + total, found + total, (size_t)kept[p]",
    ),
    slip(
        "C passes on what is after the last number of a row", "test_order",
        "room[forward ? k - 1 : k + 1];", "room[k];",
    ),
    slip(
        "C rounds a quantile's value for the token that has it", "backends*quantiles",
        'f"const double {self.names[node]} = {room}[{place}];"', 'f"const real {self.names[node]} = {room}[{place}];"',
    ),
    slip(
        "a formula reads a quantile's value with other arguments", "compiler*reuse",
        "[arg(inputs.index(o)) for o in value.inputs]", "[arg(i) for i, _ in enumerate(value.inputs)]",
    ),
    slip(
        "a loop computes all that quantiles read in float64", "compiler*reuse",
        "wanted.update(o for o in node.operands if o in self.precise)\n        return frozenset(wanted | set(step.found))",
        "wanted.update(o for o in node.operands if o in self.precise)\n        return frozenset(set(step.values) & self.precise | set(step.found))",
    ),
    slip(
        "of several leaves the values set aside last are left", "backends*quantiles",
        """place = " + ".join(["i", *(f"{w}_offsets[b + 1] - {w}_offsets[b]" for w in before)])""", 'place = "i"',
    ),
    slip(
        "Triton takes the number at a place for the one after it", "backends*quantiles",
        "b = torch.where(k + 1 < equal, a, least)", "b = torch.where(k < equal, a, least)",
    ),
    slip(
        "C sums tokens in float32", "hard_inputs test_c.py test_shipped test_chains",
        "f\"double {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};\"",
        "f\"float {self.names[push]} = {'0' if push.reduce == 'sum' else '-INFINITY'};\"",
    ),
    slip(
        "C reads places as int32", "test_c.py test_shipped test_chains",
        'INTEGERS: "const int64_t *restrict {0}"', 'INTEGERS: "const int32_t *restrict {0}"',
    ),
    slip(
        "C takes the number of a token for its place", "vectors test_shipped test_chains",
        "(WHOLE_##S ? start + (i) :", "(WHOLE_##S ? first + (i) :",
    ),
    slip(
        "C leaves out the last piece of a long sum", "test_c.py hard_inputs test_shipped test_chains",
        "at < end ? at : end, at + LONG < end ? at + LONG : end)", "at < end ? at : end, at + LONG < end ? at + LONG : at < end ? at : end)",
    ),
    slip(
        "C leaves a masked place before the first row as it was", "backends/test_layouts hard_inputs test_shipped test_chains",
        'f"if (!b) FILL_GAP({out}, 0, start);"', 'f"if (!b) FILL_GAP({out}, 1, start);"',
    ),
    slip(
        "C rounds ties of bfloat16 away from 0", "c_math",
        "h = (i + 0x7fff + (i >> 16 & 1)) >> 16", "h = (i + 0x8000) >> 16",
    ),
    slip(
        "C reads bfloat16 as whole numbers", "test_c.py hard_inputs test_shipped test_chains",
        "{ return from_bf16(*p); }", "{ return (float)*p; }",
    ),
    slip(
        "the key of a built library leaves out the flags", "test_c.py",
        "parts = [source, *flags, *cc, version(cc), _processor()]", "parts = [source, *cc, version(cc), _processor()]",
    ),
    slip(
        "Triton's tiles reach one token too far", "triton test_shipped test_chains",
        "m, j, read = i < n,", "m, j, read = i <= n,",
    ),
    slip(
        "Triton reads what lies after a row", "test_ptx",
        "tl.minimum(i, n - 1), n > 0", "i, n > 0",
    ),
    slip(
        "Triton reads before a row that has no token left", "test_ptx test_layouts",
        "tl.minimum(i, n - 1), n > 0", "tl.minimum(i, n - 1), n >= 0",
    ),
    slip(
        "Triton sums what lies before a row in its first vector", "test_vectors_of_tokens",
        "m & (i >= before), tl.maximum(j, before)", "m, tl.maximum(j, before)",
    ),
    slip(
        "Triton stores a vector over the end of the row before", "test_vectors_of_tokens",
        "whole = (v >= low) & (v + 4 <= high)", "whole = v + 4 <= high",
    ),
    slip(
        "Triton stores no token of a vector that two rows share", "test_vectors_of_tokens",
        "if t == 0 or t + value.shape[1] > fewest:", "if t == 0:",
    ),
    slip(
        "Triton's sums of a row depend on where it begins", "test_vectors_of_tokens",
        'made = f"halved({part})" if halved else', 'made = f"tl.sum({part}, axis=1)" if halved else',
    ),
    slip(
        "Triton reads vectors of tensors that begin between them", "test_vectors_of_tokens",
        "x.data_ptr() % (4 * x.element_size()) == 0", "x.data_ptr() % 4 == 0",
    ),
    slip(
        "Triton leaves the shortest row out", "test_vectors_of_tokens",
        "live = b < n_segments\n", "live = b < n_segments - 1\n",
    ),
    slip(
        "Triton sums what lies beyond a row", "triton test_shipped test_chains",
        'value = f"tl.where(m, {typed(names[push.operand], precision)}, {NEUTRAL[push.reduce]})"',
        "value = typed(names[push.operand], precision)",
    ),
    slip(
        "Triton does not fill masked places after a row", "triton test_shipped test_chains",
        "tl.store(p + (t + i), value, mask=i < high)", "tl.store(p + (t + i), value, mask=m)",
    ),
    slip(
        "C fills gaps between segments that are out of order", "backends/test_layouts",
        "if (WHOLE_{w} && COUNTED_{w} &&", "if (WHOLE_{w} &&",
    ),
    slip(
        "C writes masked places that are 0 already", "backends/test_layouts",
        "COUNTED_{w} && !isnan(fill))", "COUNTED_{w} && 1)",
    ),
    slip(
        "C writes masked places beside a block that are 0 already", "backends/test_layouts",
        '"if (!isnan(fill)) {', '"if (1) {',
    ),
    slip(
        "zeros are taken for the fill of every result", "backends/test_layouts",
        "return self.is_mapped and self.fill == 0", "return self.is_mapped",
    ),
    slip(
        "mapped memory of scattered tokens is left at 0", "backends/test_layouts",
        "if not whole and self.fill:", "if whole and self.fill:",
    ),
    slip(
        "mapped memory begins where numpy's does", "backends/test_layouts",
        "first = -memory.ctypes.data % ALIGNMENT", "first = 0",
    ),
    slip(
        "C takes rows of a block to be joined", "backends/test_blocks",
        "joined = starts[rows - 1] - starts[0] == offsets[rows - 1] - first;", "joined = 1;",
    ),
    slip(
        "C spreads the number of a block's first row", "backends/test_blocks",
        "to[offsets[r] - offsets[0] + i] = from[r];", "to[offsets[r] - offsets[0] + i] = from[0];",
    ),
    slip(
        "a block's later sweep recalls what it has not read", "backends/test_blocks",
        "if const or array in recalled:", "if const:",
    ),
    slip(
        "all rows of a block have the parameter of the first", "backends/test_blocks",
        "to[r] = from[r];\n    else", "to[r] = from[0];\n    else",
    ),
    slip(
        "C saves numbers of every block for the first", "backends/test_blocks",
        '{self.arrays[node]}[b0 + r] = ', '{self.arrays[node]}[r] = ',
    ),
    slip(
        "C fills the gap after a block alone", "backends/test_blocks",
        "r = joined ? rows - 1 : 0; r < rows", "r = rows - 1; r < rows",
    ),
    slip(
        "a pass over a block adds up the token after a row", "backends/test_blocks",
        "part[k] = k < n ? IN(x[at + k]) : NONE;", "part[k] = k <= n ? IN(x[at + k]) : NONE;",
    ),
    slip(
        "long rows are summed in one lane, short ones in several", "backends/test_order_of_sums",
        'return f"{lanes}[k] += {value};"', 'return f"{lanes}[0] += {value};"',
    ),
    slip(
        "the number of lanes is that of the processor", "backends/test_order_of_sums",
        "#define LANES (64 / NARROW) /*",
        "#ifdef __AVX512F__\n#define LANES (64 / NARROW)\n#else\n#define LANES (32 / NARROW)\n#endif\n/*",
    ),
    slip(
        "advantages of all packed tokens are taken for those of rows", "backends/test_blocks test_operator",
        "of_rows = per_row or index.rows_are_tokens()", "of_rows = per_row or len(index.shape) == 1",
    ),
    slip(
        "Triton fills gaps between segments that are out of order", "backends/test_layouts",
        "if positions is None and tokens is None:", "if positions is None:",
    ),
    slip(
        "the certificate leaves out what Triton adds to a kernel's parameters", "test_standalone",
        '"parameters": str(dict(kernel.parameters))', '"parameters": str(dict(request.signature))',
    ),
    slip(
        "the certificate says what was asked for, not what the file is for", "test_standalone test_ahead",
        '"target": kernel.target', '"target": arch',
    ),
    slip(
        "Triton's blocks arrive without a release", "test_ptx",
        'tl.atomic_add(counter, 1, sem="acq_rel")', 'tl.atomic_add(counter, 1, sem="relaxed")',
    ),
    slip(
        "Triton's last program is the one of the last number", "test_grid_order",
        "last = tl.atomic_add(", "last = tl.program_id(0) + 0 * tl.atomic_add(",
    ),
    slip(
        "Triton's groups of a coarse stage wait for nothing", "test_ptx",
        'self.line(1, "tl.debug_barrier()")\n', "pass\n",
    ),
    slip(
        "Triton asks for what a sweep has yet to save", "test_chains",
        "            if isinstance(node, Pull):  # which may be saved here, and is read elsewhere\n                self.value(1, node)\n            else:\n                self.need(1, node)\n",
        "            self.need(1, node)\n",
    ),
    slip(
        "a program of a coarse stage goes on before others have begun", "test_ptx test_grid_order",
        'self.line(1, "if last_to_arrive(counter):")', 'self.line(1, "if tl.program_id(0) == 0:")',
    ),
    slip(
        "programs of a coarse stage share what needs the results of others", "test_triton.py",
        "if alone and reads <= own and (", "if (",
    ),
    slip(
        "torch works in place on what it reads", "vectors gradients test_shipped test_chains",
        '"expm1": "torch.expm1({})"', '"expm1": "({}).expm1_()"',
    ),
    slip(
        "torch takes fibres to be sorted that begin so", "vectors test_operator test_shipped test_chains",
        "is_sorted = bool((parent[1:] >= parent[:-1]).all())", "is_sorted = bool((parent[1:] >= parent[:-1]).any())",
    ),
    slip(
        "Triton sums in order from the last token of the row before", "backends/test_order ptx",
        "inside = m & (i > 0)\n", "inside = m\n",
    ),
    slip(
        "Triton carries from tile to tile what is not discounted on the way", "backends/test_order ptx",
        "power * carry[:, None]", "carry[:, None] + 0.0 * power",
    ),
    slip(
        "Triton carries from tile to tile what the last one has summed alone", "backends/test_order ptx",
        "carry = tl.sum(tl.where(column == columns - 1, sum, 0.0), axis=1)", "carry = tl.sum(tl.where(column == columns - 1, value, 0.0), axis=1)",
    ),
    slip(
        "Triton sums what comes after in the order of what comes before", "backends/test_order ptx",
        "neighbour = a - way", "neighbour = a - 1",
    ),
    slip(
        "generated torch copies constants from the host", "test_issued_operations test_golden",
        "a = torch.full((), a, dtype=torch.float64, device=condition.device)",
        "a = torch.tensor(a, dtype=torch.float64, device=condition.device)",
    ),
    slip(
        "a call in another dtype runs the functions of the first", "backends/test_c.py test_layouts shipped runtime/test_prepared",
        "varying = (frame.empty.dtype, frame.per_row, *(tensors[called].dtype for _, called in binding.tokens))", "varying = (frame.per_row,)",
    ),
    slip(
        "on a GPU a product that is subtracted from itself is its rounding",
        "test_ptx",
        'constant, where, itself="{} * 0.0", alone=alone)',
        "constant, where, alone=alone)",
    ),
    slip(
        "the larger of two numbers is written for the smaller", "backends/test_idioms",
        '"minimum" if found[0] is low', '"maximum" if found[0] is low',
    ),
    slip(
        "two different numbers are taken for opposite", "backends/test_idioms",
        "and a.args == b.args[::-1]", "",
    ),
    slip(
        "a range that is not symmetric is written as a bound on |x|", "backends/test_idioms",
        "a is d and is_opposite(b, c)", "a is d",
    ),
    slip(
        "a mark that may be 1 is subtracted in place of a choice", "compiler/test_hoist",
        "if marked else node", "",
    ),
    slip(
        "a division of 0 by 0 is written as Python computes it", "backends/test_nonfinite",
        "if s.op not in CONDITIONS and is_closed(s):", 'if s.op == "const":',
    ),
    slip(
        "a constant of -0.0 has no parentheses", "backends/test_nonfinite",
        "if math.copysign(1.0, value) < 0 else", "if value < 0 else",
    ),
    slip(
        "kept launches do not tell addresses by their alignment", "backends/test_launches",
        "aligned = tuple([address % ALIGNED for address in addresses])", "aligned = (True,)",
    ),
    slip(
        "a kept kernel takes one tensor for all", "backends/test_launches",
        "values[place] = addresses[number]", "values[place] = addresses[0]",
    ),
    slip(
        "kept launches of all streams share a counter", "backends/test_launches",
        "found = self.shared.get(stream)", "found = next(iter(self.shared.values()), None)",
    ),
    slip(
        "kept launches run on the default stream", "backends/test_launches",
        "launch.run(*values, stream=stream)", "launch.run(*values, stream=0)",
    ),
    slip(
        "kept launches run on the current device, wherever their tensors are", "backends/test_launches",
        "if work.is_cuda and work.get_device() != driver.get_current_device():", "if work.is_cuda and work.get_device() < 0:",
    ),
    slip(
        "launches of functions that use torch between them are kept", "backends/test_launches",
        "self.is_kept = not any(k.call for k in kernels) and", "self.is_kept =",
    ),
    slip(
        "a row in several pieces has the advantage of one", "runtime backends/test_hard_inputs backends/test_soft_gates",
        "or not index.is_in_pieces(stratum, leaves[0]):", "or not index.is_in_pieces:",
    ),
    slip(
        "kept launches of one program take a counter", "backends/test_launches",
        "if noted.arguments.get(COUNTER) is None:", "if COUNTER not in noted.arguments:",
    ),
    slip(
        "programs that share a sum over the batch read the same elements", "backends/test_ptx",
        "range(first * columns, sources, every * columns)", "range(first * columns, sources, columns)",
    ),
    slip(
        "the last program to arrive adds up one part", "backends/test_ptx",
        "programs, 1, {len(run)}, 0, 1\"", "1, 1, {len(run)}, 0, 1\"",
    ),
    slip(
        "programs share sums over the batch of what their launch computes", "backends/test_triton",
        "return not any(computed & {*n.operands} for n in group.values)", "return bool(computed)",
    ),
    slip(
        "JAX: masked tokens are added up", "backends/test_jax",
        "    x = jnp.where(f.present, x, nothing)\n    if f.grid", "    x = jnp.broadcast_to(x, f.parent.shape)\n    if f.grid",
    ),
    slip(
        "JAX: sums of packed rows reach into the row before", "backends/test_jax",
        "inner = jnp.minimum(-(-low // WIDTH) * WIDTH, high)", "inner = -(-low // WIDTH) * WIDTH",
    ),
    slip(
        "JAX: a block that begins before the row is added to its sum", "backends/test_jax",
        "low, high = -(-low // WIDTH), high // WIDTH", "low, high = low // WIDTH, high // WIDTH",
    ),
    slip(
        "JAX: a discount counts masked tokens", "backends/test_jax",
        "    place = jnp.where(f.present, f.parent, f.targets)\n    order = jnp.argsort(place, stable=True)  #", "    place = f.parent\n    order = jnp.argsort(place, stable=True)  #",
    ),
    slip(
        "JAX: absent elements enter a quantile", "backends/test_jax",
        "parent = jnp.where(f.present, f.parent, f.targets)", "parent = f.parent",
    ),
    slip(
        "JAX: an absent row counts", "backends/test_jax",
        "push(jnp.ones((), self.real), self.fibre(leaf, rows)) > 0", "jnp.ones(n_rows, bool)",
    ),
    slip(
        "JAX: the shape of packed rewards is that of rewards per row", "backends/test_jax",
        '(("segments",), ("mask",), *((i.kind,)', '(("mask",), *((i.kind,)',
    ),
    slip(
        "JAX: a group may have two domains", "backends/test_jax",
        "self.checks.append(jnp.all(~self.present[source] | (low == high)))", "pass",
    ),
    slip(
        "JAX: rows may come in any order", "backends/test_jax",
        "jnp.all((last < 0) | (ends < first))", "jnp.all(last < n)",
    ),
    slip(
        "JAX: the gradient has the loss's sign twice", "backends/test_jax",
        "return cotangent * coefficients, None, None", "return -cotangent * coefficients, None, None",
    ),
    slip(
        "JAX: a sum in order may go over several rows", "backends/test_jax",
        "if node.sources != program.leaves or node.target not in (caller.rows, *caller.in_rows):",
        "if node.sources != program.leaves:",
    ),
)  # fmt: skip
