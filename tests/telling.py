"""Cases of `sampled` and `thorough` tests that notice a slip which no other case of `make test` notices.

The level `few` runs them too. A case: its name, and the slips of `slips/` that it notices. When a slip survives
`python tests/mutations.py --only NAME`, run it once more with `FIBRATION_TESTS=most`, and add the case that fails.
"""

TELLING = {
    "auditing/test_planted.py::test_a_right_function_is_identified_and_not_accused[a_constant_length]": (
        "bounds are tried once, before the scale is known",
    ),
    "auditing/test_identify.py::test_a_published_formula_is_identified_with_its_parameters[best_of_group]": (
        "rewards are probed alone in their groups",
    ),
    "auditing/test_identify.py::test_a_published_formula_is_identified_with_its_parameters[clip_cov]": (
        "losses whose parameters decide on policy are left out",
        "a bound that no token shows stays where a batch puts it",
    ),
    "auditing/test_identify.py::test_a_published_formula_is_identified_with_its_parameters[dapo_rewards]": (
        "rewards are probed alone in their groups",
    ),
    "auditing/test_reference.py::test_joined_batches_and_parameters_have_the_operators_numbers[fipo]": (
        "one discount serves all parameters",
    ),
    "backends/test_chains.py::test_random_chains_match_the_interpreter[33-triton]": (
        "Triton asks for what a sweep has yet to save",
    ),
    "backends/test_gradients.py::test_aggregate_gate_at_its_breakpoints[torch-log-0.3125-0.0-0]": (
        "the end of the rollback still has its slope",
    ),
    "backends/test_hard_inputs.py::test_every_masked_place_of_a_result_is_filled[c-prompts before, padding after]": (
        "C leaves a masked place before the first row as it was",
    ),
    "backends/test_hard_inputs.py::test_log_ratios_from_tiny_to_huge_have_right_results[torch-1000.0-ppo]": (
        "behind a closed gate 0·inf is NaN",
    ),
    "backends/test_layouts.py::test_segments_may_be_in_any_order_and_empty[c-gaps between-padded]": (
        "C fills gaps between segments that are out of order",
    ),
    "backends/test_order.py::test_losses_with_order_equal_their_formula[a gate that reads its prefix-torch]": (
        "gradients flow through the order that a gate reads",
    ),
    "backends/test_order.py::test_losses_with_order_equal_their_formula[weight of what follows, and of places-c]": (
        "a token is among those that come after it",
    ),
    "backends/test_order.py::test_random_sums_match_the_interpreter[1-c]": (
        "a quantile of sums is taken before they are set aside",
    ),
    "backends/test_order.py::test_random_sums_match_the_interpreter[42-c]": (
        "a sweep takes sums along others than its segments",
    ),
    "backends/test_order.py::test_interleaved_rows_have_the_order_of_their_positions[prompt_group-c]": (
        "segments list their tokens as they lie, whatever their positions",
    ),
    "backends/test_order.py::test_sums_along_ragged_rows_equal_rationals[packed-torch.float64-c]": (
        "a vector of sums hands on what is not discounted",
    ),
    "backends/test_ptx.py::test_fused_multiply_add_keeps_finite_products_finite": (
        "on a GPU a product that is subtracted from itself is its rounding",
    ),
    "backends/test_ptx.py::test_emulated_ptx_programs_equal_the_interpreter[fiberpo_domain-objective-packed-torch.float32]": (
        "Triton's blocks arrive without a release",
        "Triton's groups of a coarse stage wait for nothing",
    ),
    "backends/test_ptx.py::test_emulated_ptx_programs_equal_the_interpreter[fiberpo_modal-objective-packed-torch.float64]": (
        "Triton reads before a row that has no token left",
    ),
    "backends/test_quantiles.py::test_a_nan_makes_a_quantile_nan[c]": ("C finds a quantile among what is no number",),
    "backends/test_quantiles.py::test_quantiles_over_every_stratum_equal_numpy[padded-torch.float32-exp(mul(1.7, $0))-c]": (
        "what reads a quantile is computed in the tokens' precision",
    ),
    "backends/test_quantiles.py::test_quantiles_over_several_leaves_and_crossed_strata_equal_numpy[fiberpo_modal-padded-c]": (
        "of several leaves the values set aside last are left",
    ),
    "backends/test_ranks.py::test_the_bits_on_ranks_are_those_of_one_process[c]": (
        "what is put together is not written back",
    ),
    "backends/test_ranks.py::test_the_bits_on_ranks_are_those_of_one_process[triton]": (
        "the shape of a tile follows the tokens of this rank",
    ),
    "backends/test_rewards.py::test_published_advantages_equal_fractions[torch-opo]": (
        "a row counts once in a mean of tokens",
    ),
    "backends/test_shipped.py::test_shipped_hierarchies_match_dense_matrices[fiberpo-packed-torch.bfloat16-c]": (
        "C reads bfloat16 as whole numbers",
    ),
    "backends/test_vectors_of_tokens.py::test_a_row_has_the_same_bits_wherever_it_begins[259-fiberpo]": (
        "Triton's sums of a row depend on where it begins",
    ),
    "backends/test_weights_and_statistics.py::test_rows_of_0_1_and_a_hundred_thousand_tokens_have_right_statistics[c]": (
        "a statistic is compared in the tokens' precision",
    ),
    "backends/test_vectors.py::test_losses_and_gradients_equal_recorded_ones_of_verl[c-padded-vanilla-seq-mean-token-mean-0]": (
        "C takes the number of a token for its place",
    ),
    "backends/test_vectors.py::test_losses_and_gradients_equal_recorded_ones_of_verl[torch-padded-vanilla-token-mean-0]": (
        "token_mean counts the tokens of the row",
    ),
    "cli/test_main.py::test_an_unknown_spec_gets_a_suggestion[GSPO-did you mean 'gspo'?]": (
        "a name in capitals is near to none",
    ),
    "language/test_apart.py::test_specs_that_end_the_process_are_errors_of_collection": (
        "a spec that is imported ends the process",
        "what a spec forks does not end",
    ),
    "compiler/test_rules.py::test_a_rule_keeps_every_value_on_its_domain[add(neg(exp($0)), 1.0)]": (
        "the slope of a divergence is nothing where policies are near",
    ),
    "compiler/test_rules.py::test_a_rule_keeps_every_value_on_its_domain[lt(select($3, $6, $7), $5)]": (
        "a compared choice has one condition for both branches",
    ),
    "compiler/test_plans_on_ranks.py::test_every_rank_has_the_results_of_one_process[fiberpo_inward-cut]": (
        "an advantage is read of rows that other ranks have",
    ),
    "laws/test_facts_amplification.py::test_an_amplification_that_is_not_certified_says_why[h3-reads more of the batch]": (
        "a gate that reads densities is taken to stand still",
    ),
    "laws/test_first_order.py::test_a_bent_two_channel_recovery_keeps_first_order_only_with_identity_gates": (
        "the slope of a recovery is not asked where gates agree to first order alone",
    ),
    "laws/test_gradient.py::test_the_verdict_on_gradient_is_right_on_random_batches[intermediate residuals dropped]": (
        "agreement for advantages that are constant on any stratum is that of the gradient",
    ),
    "laws/test_identity.py::test_wrong_specs_are_refused[one advantage alone]": (
        "one advantage of each sign is enough",
    ),
    "laws/test_inward.py::test_a_gate_that_never_pushes_further_out_is_proved[gspo_token]": (
        "densities of log ratios are above minus their mass too",
    ),
    "laws/test_inward.py::test_a_gate_with_stopped_slopes_or_unordered_breakpoints_is_not_proved[a density that opens]": (
        "a gate that reads a density is followed with that density held alone",
    ),
    "laws/test_locality.py::test_wrong_specs_are_refused[a token's log-prob below it]": (
        "a level reads log-probs of single tokens",
    ),
    "laws/test_markov.py::test_wrong_specs_are_refused[negative by a denominator]": (
        "the sign of a denominator is forgotten",
    ),
    "laws/test_positivity.py::test_wrong_specs_are_refused[clip of a trajectory's ratio with its bounds swapped]": (
        "giving up first_order covers positivity",
        "ratios on several levels are tried for one advantage",
    ),
    "laws/test_recovery.py::test_wrong_specs_are_refused[a window of F]": (
        "log ratios are tried at round numbers alone",
    ),
    "laws/test_reflecting.py::test_wrong_specs_are_refused[right up to 1000]": (
        "the batch of a counterexample is left out of JSON where it is large",
    ),
    "laws/test_reflecting.py::test_wrong_specs_are_refused[square over the total]": (
        "a sum of squares is summed like one of measures",
    ),
    "laws/test_too_many_cases.py::test_a_wrong_spec_with_too_many_cases_is_not_proved[undefined condition]": (
        "too many cases count as proved",
    ),
    "plotting/test_own_batches.py::test_a_batch_without_advantages_shows_all_other_results": (
        "without advantages coefficients are compared, and are 0",
    ),
    "rollouts/test_file.py::test_the_wrong_column_is_named[infinity]": (
        "log-probs of a recorded policy may be infinite",
    ),
    "runtime/ranks/test_rank_index.py::test_the_index_of_whole_rows_on_ranks_equals_that_of_one_process[experts alone, projected (62)]": (
        "masses of other ranks' tokens are left out",
    ),
    "runtime/test_bad_input.py::test_wrong_tensors_are_named[advantages per column]": (
        "a column of advantages is taken for a row",
    ),
    "runtime/test_parameters.py::test_wrong_parameters_are_refused[number by label]": (
        "numbers by label are not checked",
    ),
    "runtime/test_precision.py::test_rounding_that_changes_regimes_is_warned_about[fewer bits, long rows]": (
        "half precision is warned of whatever the gate",
    ),
    "runtime/test_requires_grad.py::test_an_input_that_would_get_no_gradient_is_refused[a policy]": (
        "of policies that require grad the gradient is dropped",
    ),
}
