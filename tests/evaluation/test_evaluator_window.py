"""The evaluator's window slides by rows of all ranks, and ranks add up to what one rank would have seen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rap_contract.training import Evaluation as EvaluationSpec
from rap_trainer.evaluation import Evaluation, Evaluator
from rap_trainer.evaluation.evaluator import NUM_SUBWINDOWS

CPU = torch.device("cpu")


def batch(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, generator=generator) - 1
    return logits, (torch.rand(rows, generator=generator) < torch.sigmoid(logits)).float()


def evaluator(window_rows: int) -> Evaluator:
    return Evaluator(EvaluationSpec(window_rows=window_rows), CPU)


def together(ranks: list[Evaluator]) -> Evaluation:
    """The summary of rank 0, with the others' tensors added as an all-reduce would."""
    sent: list[torch.Tensor] = []
    for other in ranks[1:]:
        other.summary(lambda tensor: sent.append(tensor.clone()))
    return ranks[0].summary(lambda tensor: [tensor.add_(part) for part in sent])


def near(a: float | None, b: float | None) -> bool:
    """Equal but for the order of summation; undefined on both sides is equal."""
    return a == b if a is None or b is None else a == pytest.approx(b, rel=1e-6)


@settings(deadline=None, max_examples=25)
@given(window_rows=st.integers(1, 3000), sizes=st.lists(st.integers(0, 400), max_size=40))
def test_the_window_covers_at_least_its_rows_and_little_more(window_rows: int, sizes: list[int]) -> None:
    scored = evaluator(window_rows)
    for i, rows in enumerate(sizes):
        scored.update(*batch(rows, i))
        summary, seen = scored.summary(), sum(sizes[: i + 1])
        assert summary.life.rows == seen
        assert summary.window_full == (seen >= window_rows)
        subwindow = -(-window_rows // NUM_SUBWINDOWS)
        assert min(seen, window_rows) <= summary.window.rows <= min(seen, window_rows + subwindow + max(sizes) - 1)


def test_the_window_forgets_and_life_does_not() -> None:
    scored = evaluator(1000)
    good, labels = torch.tensor([4.0, -4.0]).repeat(50), torch.tensor([1.0, 0.0]).repeat(50)
    for _ in range(20):
        scored.update(-good, labels)
    for _ in range(20):
        scored.update(good, labels)
    summary = scored.summary()
    assert summary.window.auc == 1.0
    assert summary.life.auc == 0.5


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120)), min_size=1, max_size=25))
def test_two_ranks_add_up_to_one(sizes: list[tuple[int, int]]) -> None:
    ranks, alone = [evaluator(500), evaluator(500)], evaluator(500)
    for i, (a, b) in enumerate(sizes):
        logits, labels = batch(a + b, i)
        ranks[0].update(logits[:a], labels[:a], global_rows=a + b)
        ranks[1].update(logits[a:], labels[a:], global_rows=a + b)
        alone.update(logits, labels)
    joint, single = together(ranks), alone.summary()
    for ours, theirs in ((joint.window, single.window), (joint.life, single.life)):
        assert (ours.rows, ours.positives, ours.auc) == (theirs.rows, theirs.positives, theirs.auc)
        assert near(ours.normalized_entropy, theirs.normalized_entropy)
        assert near(ours.calibration, theirs.calibration)
    assert joint.window_full == single.window_full


@settings(deadline=None, max_examples=20)
@given(before=st.integers(0, 30), after=st.integers(0, 30), old=st.integers(1, 3), new=st.integers(1, 3))
def test_a_resume_on_any_number_of_ranks_goes_on_as_if_nothing_had_happened(
    before: int, after: int, old: int, new: int
) -> None:
    alone, ranks = evaluator(700), [evaluator(700) for _ in range(old)]
    for i in range(before + after):
        if i == before:
            ranks = resumed(ranks, new)
        logits, labels = batch(60, i)
        alone.update(logits, labels)
        for rank, scored in enumerate(ranks):
            mine = slice(rank, None, len(ranks))
            scored.update(logits[mine], labels[mine], global_rows=60)
    joint, single = together(ranks), alone.summary()
    assert (joint.window.rows, joint.window.auc, joint.window_full) == (
        single.window.rows,
        single.window.auc,
        single.window_full,
    )
    assert (joint.life.rows, joint.life.auc) == (single.life.rows, single.life.auc)
    assert near(joint.life.normalized_entropy, single.life.normalized_entropy)


def resumed(ranks: list[Evaluator], new_world: int) -> list[Evaluator]:
    """Evaluators of another world that took up the state of these."""
    sent: list[torch.Tensor] = []
    for other in ranks[1:]:
        other.state(lambda tensor: sent.append(tensor.clone()))
    state = ranks[0].state(lambda tensor: [tensor.add_(part) for part in sent])
    fresh = [evaluator(700) for _ in range(new_world)]
    for rank, scored in enumerate(fresh):
        scored.load_state(state, rank=rank)
    return fresh


def test_a_state_does_not_change_while_training_goes_on() -> None:
    scored = evaluator(100)
    scored.update(*batch(64, 0))
    state = scored.state()
    before = {name: tensor.clone() for name, tensor in state.items()}
    scored.update(*batch(64, 1))
    assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


def test_a_state_of_the_same_rank_is_bit_equal_after_loading() -> None:
    scored, taken_up = evaluator(300), evaluator(300)
    for i in range(23):
        scored.update(*batch(47, i))
    taken_up.load_state(scored.state(), rank=0)
    assert all(torch.equal(a, taken_up.state()[name]) for name, a in scored.state().items())
    assert taken_up.summary() == scored.summary()


def test_a_smaller_window_in_a_changed_job_takes_up_the_old_state() -> None:
    scored, taken_up = evaluator(1000), evaluator(200)
    for i in range(30):
        scored.update(*batch(50, i))
    taken_up.load_state(scored.state(), rank=0)
    taken_up.update(*batch(50, 99))
    assert taken_up.summary().life.rows == 1550
    assert 200 <= taken_up.summary().window.rows < 300


def test_a_larger_window_in_a_changed_job_fills_up_in_time() -> None:
    scored, taken_up = evaluator(200), evaluator(2000)
    for i in range(10):
        scored.update(*batch(50, i))
    taken_up.load_state(scored.state(), rank=0)
    assert not taken_up.summary().window_full
    for i in range(60):
        taken_up.update(*batch(50, i))
    assert taken_up.summary().window_full
    assert taken_up.summary().window.rows >= 2000


def test_a_state_of_another_layout_is_refused_with_a_hint() -> None:
    state = evaluator(10).state()
    state["cells"] = state["cells"][:, :-2]
    with pytest.raises(ValueError, match="another layout than this version's; start a new checkpoint directory"):
        evaluator(10).load_state(state, rank=0)


def test_the_device_part_and_the_host_part_together_are_an_update() -> None:
    whole, parts = evaluator(100), evaluator(100)
    for i in range(12):
        logits, labels = batch(30, i)
        whole.update(logits, labels)
        parts.accumulate(logits, labels)
        parts.advance(30)
    assert parts.summary() == whole.summary()
