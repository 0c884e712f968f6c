"""Trees give the log-probabilities and gradients that padded rows with full logits give."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from learner.ports import ScoredRollout
from learner.training.attention import tree_layout
from learner.training.head import pair_logprobs
from learner.training.logprobs import PlainScorer, Scorer, TreeMicrobatch, TreeScorer, choose_scorer
from learner.training.model import Policy
from learner.training.rows import PolicyTokens, policy_tokens
from trajectory.tree import build_tree

MakePolicy = Callable[..., Policy]
MakeGroups = Callable[..., list[list[ScoredRollout]]]
CPU = torch.device("cpu")


def _tokens(groups: list[list[ScoredRollout]]) -> PolicyTokens:
    return policy_tokens([row for group in groups for r in group for row in r.rows])


def _run(
    policy: Policy, scorer: Scorer, tokens: PolicyTokens, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, Mapping[str, torch.Tensor]]:
    logprobs, entropy = torch.empty(tokens.num_tokens), torch.empty(tokens.num_tokens)
    weights = torch.linspace(-1, 1, tokens.num_tokens)
    seen = torch.zeros(tokens.num_tokens, dtype=torch.long)
    for parameter in policy.parameters.values():
        parameter.grad = None
    for part in scorer.split(tokens):
        scores = part.score(policy.model, temperature)
        (scores.logprobs_P * weights[part.tokens_P]).sum().backward()
        logprobs[part.tokens_P] = scores.logprobs_P.detach()
        entropy[part.tokens_P] = scores.entropy_P
        seen[part.tokens_P] += 1
    assert (seen == 1).all()
    gradients = {}
    for name, parameter in policy.parameters.items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.clone()
    return logprobs, entropy, gradients


def _assert_same_gradients(
    found: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]
) -> None:
    for name, gradient in right.items():
        assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_entropy_is_the_shared_case(case: Callable[[str], Any]) -> None:
    found = case("entropy")
    hidden = torch.tensor([found["inputs"]["logits"]], requires_grad=True)
    first, output = torch.tensor([0]), torch.eye(hidden.shape[1])
    _, entropy = pair_logprobs(hidden, output, first, first, 1.0)
    # The case is in float64, scores are in float32.
    assert entropy.tolist() == pytest.approx([found["expected"]["entropy"]], abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tree_equals_plain(
    make_policy: MakePolicy, make_groups: MakeGroups, seed: int, temperature: float
) -> None:
    policy = make_policy()
    tokens = _tokens(make_groups(seed))
    plain = _run(policy, PlainScorer(CPU), tokens, temperature)
    tree = _run(policy, TreeScorer(CPU), tokens, temperature)
    assert (tree[0] - plain[0]).abs().max() < 1e-5
    assert (tree[1] - plain[1]).abs().max() < 1e-5
    _assert_same_gradients(tree[2], plain[2])


@pytest.mark.parametrize("max_nodes", [1, 20, 64])
def test_any_split_gives_the_same_gradient(
    make_policy: MakePolicy, make_groups: MakeGroups, max_nodes: int
) -> None:
    policy = make_policy()
    tokens = _tokens(make_groups(9, num_groups=3, group_size=4))
    whole = _run(policy, TreeScorer(CPU, 10_000), tokens, 1.0)
    split = _run(policy, TreeScorer(CPU, max_nodes), tokens, 1.0)
    assert (split[0] - whole[0]).abs().max() < 1e-5
    _assert_same_gradients(split[2], whole[2])


@pytest.mark.slow
def test_two_hundred_random_groups_are_the_same_packed_shared_and_split(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy, forked = make_policy(), 0
    for seed in range(200):
        rng = random.Random(seed)
        groups = make_groups(
            1000 + seed, num_groups=1, group_size=rng.randint(2, 5), length=rng.randint(1, 9)
        )
        tokens = _tokens(groups)
        forked += len(tokens.rows) > len(groups[0])
        apart = _run(policy, PlainScorer(CPU, 1), tokens, 1.0)
        size = rng.choice((8, 24, 64, 10_000))
        for scorer in (PlainScorer(CPU, size), TreeScorer(CPU, size)):
            found = _run(policy, scorer, tokens, 1.0)
            assert (found[0] - apart[0]).abs().max() < 1e-5, seed
            assert (found[1] - apart[1]).abs().max() < 1e-5, seed
            _assert_same_gradients(found[2], apart[2])
    assert forked > 100


def test_long_rows_span_several_blocks(make_policy: MakePolicy, make_groups: MakeGroups) -> None:
    policy = make_policy()
    tokens = _tokens(make_groups(3, length=120))
    assert max(len(row) for row in tokens.rows) > 130
    plain = _run(policy, PlainScorer(CPU, 4096), tokens, 1.0)
    tree = _run(policy, TreeScorer(CPU, 4096), tokens, 1.0)
    assert (tree[0] - plain[0]).abs().max() < 1e-5
    _assert_same_gradients(tree[2], plain[2])


def test_rows_beyond_the_stored_keys_take_the_recomputing_attention(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy = make_policy()
    tokens = _tokens(make_groups(2, num_groups=1, group_size=1, length=1400))
    assert max(len(row) for row in tokens.rows) > 1100
    plain = _run(policy, PlainScorer(CPU, 8192), tokens, 1.0)
    tree = _run(policy, TreeScorer(CPU, 8192), tokens, 1.0)
    assert (tree[0] - plain[0]).abs().max() < 1e-5
    _assert_same_gradients(tree[2], plain[2])


def test_a_node_is_computed_once_however_many_rows_share_it(make_groups: MakeGroups) -> None:
    (group,) = make_groups(1, num_groups=1, group_size=1)
    once, five = (TreeScorer(CPU).split(_tokens([group * n]))[0] for n in (1, 5))
    assert isinstance(once, TreeMicrobatch)
    assert isinstance(five, TreeMicrobatch)
    assert torch.equal(five.token_ids_N, once.token_ids_N)
    assert torch.equal(five.nodes_M, once.nodes_M)
    assert len(five.tokens_P) == 5 * len(once.tokens_P)


def test_every_node_has_one_place_in_the_layout(make_groups: MakeGroups) -> None:
    rows = [row.token_ids for group in make_groups(4, length=100) for r in group for row in r.rows]
    for tree in build_tree(rows, 300):
        layout = tree_layout(tree, CPU)
        query_nodes = torch.cat([group.query_BQ.flatten() for group in layout.groups])
        assert query_nodes[layout.place_N].tolist() == list(range(tree.num_nodes))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_with_full_attention_shares(make_policy: MakePolicy, dtype: str) -> None:
    policy = make_policy(dtype=dtype)
    assert isinstance(choose_scorer(policy.model, CPU), TreeScorer)


@pytest.mark.parametrize(
    "change", [{"sliding_window": 16}, {"layer_types": ["full_attention", "sliding_attention"]}]
)
def test_a_model_with_windows_takes_the_plain_path(
    make_policy: MakePolicy, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    policy = make_policy()
    for name, value in change.items():
        setattr(policy.model.config, name, value)
    assert isinstance(choose_scorer(policy.model, CPU), PlainScorer)
    assert "prefixes are not shared" in caplog.text


def test_a_model_that_ignores_the_tree_takes_the_plain_path(make_policy: MakePolicy) -> None:
    policy = make_policy()
    head = policy.model.get_output_embeddings()
    # An output layer with a bias is not what the tree scorer computes.
    head.bias = torch.nn.Parameter(torch.linspace(0, 3, 512), requires_grad=False)
    assert isinstance(choose_scorer(policy.model, CPU), PlainScorer)


def test_scores_without_gradient_equal_those_with(
    make_policy: MakePolicy, make_groups: MakeGroups
) -> None:
    policy = make_policy()
    (part,) = TreeScorer(CPU).split(_tokens(make_groups(6)))
    scores = part.score(policy.model, 1.0)
    with torch.no_grad():
        again = part.score(policy.model, 1.0)
    assert torch.equal(scores.logprobs_P, again.logprobs_P)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ((False, True), "row 0: 3 token ids and 2 mask entries"),
        ((False, False, False), "row 0: no token is in the loss"),
        ((True, False, False), "row 0: its first token is in the loss"),
    ],
)
def test_a_row_that_cannot_be_trained_on_is_refused(mask: tuple[bool, ...], message: str) -> None:
    class Row:
        token_ids = (1, 2, 3)
        loss_mask = mask

    with pytest.raises(ValueError, match=message):
        policy_tokens([Row()])
