"""An engine samples that is not quite the policy: a third policy, weights and masks between the two."""
