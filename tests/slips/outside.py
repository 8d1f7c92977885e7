"""Slips in the other rooms of the library."""

from slips.slip import slip

SLIPS = (
    slip(
        "the printed loss is without its penalties", "printing/test_show",
        """yield f"J = Σ_i μ_i·{product}" + "".join(f" - {_penalised(k, p)}" for k, p in h.penalties.items())""",
        'yield f"J = Σ_i μ_i·{product}"',
    ),
    slip(
        "in a printed module Python computes with two numbers", "printing/test_python",
        "first: Document = self._constant(left)", "first: Document = self.write(left)",
    ),
    slip(
        "in a printed module a difference on the right has no parentheses", "printing/test_python",
        "PREFIX if strength in JOINED else strength + 1)", "PREFIX if strength in JOINED else strength)",
    ),
    slip(
        "in a printed module a part comes before what it reads", "printing/test_python",
        "self.statements.append((self.named[e], document))", "self.statements.insert(0, (self.named[e], document))",
    ),
    slip(
        "in a printed module a variable takes the name of a function", "printing/test_python",
        "        while name in self._taken:\n", "        while name in ():\n",
    ),
    slip(
        "a reason ends its quotation in a printed module", "printing/test_python",
        """other = {"\\\\'": "'", '"': '\\\\"'}""", """other = {"\\\\'": "'"}""",
    ),
    slip(
        "a printed group mean of others has the answer's own reward", "printing/test_python",
        "_given(over=right.over, leave_one_out=right.others or None, of=right.of)", "_given(over=right.over, of=right.of)",
    ),
    slip(
        "GitHub is told of what follows too", "cli/test_main",
        "for v in o.report.causes]", "for v in o.report.failures]",
    ),
    slip(
        "nothing keeps steep slopes from tokens that are dropped", "test_weights_and_statistics",
        "return any(objective is not None and objective.kept for objective in objectives)", "return False",
    ),
    slip(
        "an entry of the cache is written in place", "test_c.py",
        "            made.rename(place)\n", "            shutil.copytree(made, place)\n",
    ),
    slip(
        "a name in capitals is near to none", "test_main",
        'typed = word.casefold().replace("-", "_")', "typed = word",
    ),
    slip(
        "the doctor finds any backend well", "test_doctor",
        "    if difference <= AGREEMENT:\n", "    if not difference > 1:\n",
    ),
    slip(
        "the doctor takes a broken machine for usable", "test_doctor",
        "    broken = [f.name for f in findings if f.state == \"broken\"]\n", "    broken: list[str] = []\n",
    ),
    slip(
        "a new project takes the place of files", "test_project",
        "    there = [name for name in files if (folder / name).exists()]\n", "    there: list[str] = []\n",
    ),
    slip(
        "what is printed goes where long work is told of", "test_progress",
        "    seen = sys.stdout.isatty()\n", "    seen = True\n",
    ),
    slip(
        "a reason is markup in a notebook", "test_notebooks",
        "{' | '.join(map(_cell, row))}", "{' | '.join(row)}",
    ),
    slip(
        "a notebook shows refusals alone", "test_notebooks",
        "    for f in r.noted:\n        because", "    for f in ():\n        because",
    ),
    slip(
        "a short report leaves warnings to --all", "cli/test_main",
        "return (*self.warnings, *(f for", "return (*(), *(f for",
    ),
    slip(
        "a law that is given up in part holds", "cli/test_main",
        "others = {v.law for v in self.verdicts if v.status != \"proved\"}", "others = {v.law for v in self.verdicts if not v.accepted}",
    ),
    slip(
        "code that ends its process ends the command", "test_apart",
        "        except (EOFError, OSError):", "        except BlockingIOError:",
    ),
    slip(
        "what code forks goes on beside it", "test_apart",
        "        if os.getpid() != process:\n            _end(1)\n", "",
    ),
    slip(
        "what code starts outlives it", "test_apart",
        "        for kill in (os.killpg, os.kill):\n", "        for kill in (os.kill,):\n",
    ),
    slip(
        "a result that was not written is one", "test_apart",
        "        end = SystemExit(UNUSABLE)\n", "        pass\n",
    ),
    slip(
        "what is kept is run, whoever wrote it", "test_cache",
        "        for doubt in filter(None, (_doubt(part, info) for part, info in parts.items())):\n", "        for doubt in ():\n",
    ),
    slip(
        "a cache folder that others may write is taken", "test_cache",
        "    for part, info in _on_the_way(place):\n", "    for part, info in ():\n",
    ),
    slip(
        "what is built is a group's to write where the umask says so", "test_cache",
        "                    file.chmod(0o644)\n", "                    file.chmod(0o664)\n",
    ),
    slip(
        "any group counts as the user's own", "test_cache",
        "    alone = {*its.gr_mem} <= {user.pw_name}\n", "    alone = True\n",
    ),
    slip(
        "the cache folder itself may be sticky", "test_cache laws/test_verdict_cache",
        "above=last is None or not os.path.samestat(info, last)", "above=True",
    ),
    slip(
        "damage in the cache goes unseen", "test_c.py",
        "(place / DIGEST).read_text() == _digest(place)", "(place / DIGEST).exists()",
    ),
    slip(
        "a label may be one too large", "rollouts/test_file",
        "(x >= NONE) & (x < len(names))", "(x >= NONE) & (x <= len(names))",
    ),
    slip(
        "tied actions share equally", "trust_region*maximiser",
        "(values == extreme[states.of_token]), multiplicity, 0.0)",
        "(values == extreme[states.of_token]), multiplicity.sign(), 0.0)",
    ),
    slip(
        "the backward of a gate knows nothing of NaN", "test_nonfinite",
        '"gate_adjoint": mark_nonfinite(only(transposed, "log_ratio_gradient"), hierarchy),',
        '"gate_adjoint": only(transposed, "log_ratio_gradient"),',
    ),
    slip(
        "recorded rewards are left where advantages were recorded too", "rollouts/test_replay",
        "    if h.advantages is not None:\n        advantages: Tensor | None = op.adv", "    if h.advantages is not None and rollouts.advantages is None:\n        advantages: Tensor | None = op.adv",
    ),
    slip(
        "log-probs of a recorded policy may be infinite", "rollouts/test_file",
        "_all(r, name, column, np.isfinite,", "_all(r, name, column, lambda x: x == x,",
    ),
    slip(
        "what sampled is taken for the old policy in a recorded batch", "plotting/test_policies",
        "_double(rollouts.policies[name])", "_double(rollouts.old_log_probs)",
    ),
    slip(
        "rows without tokens are recorded", "rollouts/test_from_batch",
        "self.rows = np.flatnonzero(np.diff(before))", "self.rows = np.arange(self.n_given)",
    ),
    slip(
        "advantages of rows without tokens stay in recorded rollouts", "rollouts/test_from_batch",
        "_floats(array, name)[self.rows], name, False", "_floats(array, name)[: len(self.rows)], name, False",
    ),
    slip(
        "what a mask hides is read", "rollouts/test_from_batch",
        "_floats(self._every(_read(value, name), name), name)[self.kept], name, True", "_floats(self._every(_read(value, name), name), name)[: len(self.kept)], name, True",
    ),
    slip(
        "float64 is rounded as it is recorded", "rollouts/test_from_batch",
        "np.float64 if array.dtype in (np.float64, np.longdouble) else np.float32", "np.float32",
    ),
    slip(
        "files of the first format have the domains of their first groups", "rollouts/test_file",
        "Labels(domain[group], domains)", "Labels(domain[group * 0], domains)",
    ),
    slip(
        "names of narrow strips stand on each other", "plotting/test_own_batches",
        "while groups and groups[-1][0] >= mean:", "while False:",
    ),
    slip(
        "the parts that are told apart are the smallest", "plotting/test_own_batches",
        "rank = np.argsort(np.argsort(-counts", "rank = np.argsort(np.argsort(counts",
    ),
    slip(
        "attributes of coarser elements may differ over their tokens", "plotting/test_own_batches",
        "np.flatnonzero((of != NONE) & (numbers[of] != values))", "np.flatnonzero((of == NONE) & (numbers[of] != values))",
    ),
    slip(
        "without advantages coefficients are compared, and are 0", "plotting/test_own_batches",
        "    if gated.advantages is None:  # the coefficients are those of advantages of 0", "    if False:",
    ),
    slip(
        "worlds of a figure whose weights see the batch share one", "plotting/test_policies",
        "    seen |= read_of_tokens(op.hierarchy).outputs if op.hierarchy.objective.formulas else {}\n", "",
    ),
    slip(
        "a figure takes a pull for a coarser drift", "plotting/test_policies",
        'return of_tokens and _reads(operand, "advantage")', "return False",
    ),
)  # fmt: skip
