"""The reinforcement algorithms by the name that `algorithm` gives, and what tells each apart.

    name                     advantages                ratio   KL
    grpo                     group mean (and std)      token   loss
    dr_grpo                  group mean                token   loss
    dapo                     group mean and std        token   loss
    rloo                     mean of the others        token   loss
    reinforce_pp             batch-wide, per token     token   reward
    reinforce_pp_baseline    group mean, batch std     token   loss
    gspo                     group mean and std        row     loss

Numbers (clip range, aggregation and so on) have their defaults in `runspec.schema`.
"""

from collections.abc import Mapping

from learner.training.algorithms import dr_grpo, reinforce_pp, rloo
from learner.training.algorithms.policy_gradient import PolicyGradientSettings

KINDS: Mapping[str, PolicyGradientSettings] = {
    "grpo": PolicyGradientSettings(),
    "dr_grpo": PolicyGradientSettings(advantages=dr_grpo.advantages),
    "dapo": PolicyGradientSettings(only_groups_that_teach=True),
    "rloo": PolicyGradientSettings(advantages=rloo.advantages),
    "reinforce_pp": PolicyGradientSettings(per_token_returns=True),
    "reinforce_pp_baseline": PolicyGradientSettings(advantages=reinforce_pp.baseline_advantages),
    "gspo": PolicyGradientSettings(ratio_of_rows=True),
}
"""Add an algorithm of this family by one file beside these and one line here."""
