"""Every case of the shared losses.json is checked by a test; this says by which module.

A module counts where it has the case's id in its code; that it checks the case well, nobody can see from here.
"""

import ast
import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("HONE_SHARED") or ROOT.parent / "shared")
CASES = SHARED / "cases" / "losses.json"
needs_cases = pytest.mark.skipif(
    not CASES.exists(), reason=f"{CASES} is not there; set HONE_SHARED"
)

COVERED = {
    "libs/runspec/tests/test_preferences.py": "rlaif_soft_label",
    "services/grader/tests/test_agreement.py": """
        kappa_grants kappa_same_po_1 kappa_sklearn kappa_perfect kappa_chance kappa_undefined kappa_weighted""",
    "services/grader/tests/test_losses_rewards.py": """
        dapo_soft_overlong dapo_soft_overlong_small length_penalty_seed step_reward_sum discounted_return_0.9
        discounted_return_0.99 discounted_return_0.0 multi_grader_weighted""",
    "services/learner/tests/test_spread.py": """
        pass_at_k variance_classes variance_informative_fraction compute_multiplier_gain bernoulli_variance""",
    "services/learner/tests/training/test_algorithms.py": """
        grpo_adv_binary grpo_adv_one_hit_of_8 grpo_adv_graded grpo_adv_all_equal_ones grpo_adv_all_equal_zero
        grpo_adv_all_equal_0.35 grpo_adv_two_groups loo_std_residue drgrpo_adv rloo_binary rloo_graded
        reinforcepp_global_norm reinforcepp_baseline aggregation_three_ways trl_misscale
        ppo_clip_table ppo_clip_vector gspo_ratio gspo_mask_invariance gspo_loss
        gae_terminal gae_lambda0_td gae_lambda1_mc gae_llm_default_g1_l1 gae_reward_then_observation whiten_masked
        dapo_soft_overlong dapo_soft_overlong_small dapo_dynamic_sampling_filter variance_classes
        kl_exact_expectation kl_gradient_bias kl_extreme
        tis_length_blowup nucleus_bias effective_sample_size
        sft_token_vs_sequence_mean sft_prompt_and_tool_masked""",
    "services/learner/tests/training/test_logprobs.py": "entropy",
    "services/learner/tests/training/test_preferences.py": "bt_loss bt_margin bt_probability dpo_loss",
    "services/memory/tests": "memrl_q_update memrl_q_next memrl_only_used_items memrl_two_phase",
    "tools/hone_cli/tests/test_bradley_terry.py": "bt_three_player_mle",
}
"""Test modules, or folders of them, and the ids of the cases that they check."""


def _texts(module: Path) -> set[str]:
    """All texts in the code of a module; comments are none."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@needs_cases
def test_every_case_has_a_test_and_no_other_is_claimed() -> None:
    cases = [case["id"] for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"]]
    assert len(cases) == len(set(cases))
    assert {name for ids in COVERED.values() for name in ids.split()} == set(cases)


@pytest.mark.parametrize("place", COVERED)
def test_module_has_the_cases_that_are_its_own(place: str) -> None:
    modules = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
    texts = set().union(*(_texts(module) for module in modules))
    assert set(COVERED[place].split()) <= texts
