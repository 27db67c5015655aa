"""What the adapter for PyTorch must not lose; tests in tests/torch run in the environment of `make test-torch`."""

from typing import Final

from tests.mutants.mutant import Mutant

_TAGGED: Final = "services/checkpoints/tagged.py"
_RUN: Final = "services/checkpoints/torch_run.py"
_TORCH: Final = "services/checkpoints/torch.py"
_STORE: Final = "services/checkpoints/store_group.py"
_STORIES: Final = "tests/torch/test_torch_run.py"

MUTANTS: Final = (
    Mutant(
        name="a-tuple-that-comes-back-as-a-list",
        rule="G21",
        file=_TAGGED,
        before='return {"!tuple": [tagged(each, f"{where}[{at}]", other=other) for at, each in enumerate(value)]}',
        after='return [tagged(each, f"{where}[{at}]", other=other) for at, each in enumerate(value)]',
        tests=("tests/services/checkpoints/test_tagged.py::test_a_value_comes_back_as_it_went_through_a_record",),
        paired="types are compared too",
    ),
    Mutant(
        name="no-look-at-torchs-counter-of-changes",
        rule="G21",
        file=_RUN,
        before='"tensors": 2 * changed,',
        after='"tensors": 0,',
        tests=(f"{_STORIES}::test_a_change_while_the_items_are_copied_refuses_the_capture",),
        paired="a change outside of a step",
    ),
    Mutant(
        name="no-look-at-the-generators",
        rule="G21",
        file=_RUN,
        before='"rng": 2 * int(drawn[:15], 16)',
        after='"rng": 0 * int(drawn[:15], 16)',
        tests=(f"{_STORIES}::test_a_change_while_the_items_are_copied_refuses_the_capture",),
        paired="a draw between the readings",
    ),
    Mutant(
        name="a-step-whose-beginning-nobody-marks",
        rule="G21",
        file=_RUN,
        before='run.optimizer.register_step_pre_hook(lambda *_: self._own.begin("optimizer"))',
        after='run.optimizer.register_step_post_hook(lambda *_: self._own.begin("optimizer"))',
        tests=(f"{_STORIES}::test_a_step_that_has_begun_is_odd_until_it_has_ended",),
        paired="a step that an error has ended half way",
    ),
    Mutant(
        name="an-overflow-that-nobody-counts",
        rule="G21",
        file=_RUN,
        before="                        self._attempted(skipped=True)",
        after="                        pass",
        tests=(f"{_STORIES}::test_a_scheduler_that_steps_without_an_update_is_refused_with_both_numbers",),
        paired="the counts after an overflow",
    ),
    Mutant(
        name="a-forward-pass-that-failed-is-counted",
        rule="G21",
        file=_RUN,
        before="if result is not None and module.training",
        after="if module.training",
        tests=(f"{_STORIES}::test_a_forward_pass_that_failed_counts_nowhere",),
        paired="a forward pass that raises",
    ),
    Mutant(
        name="half-given-values-stay",
        rule="G21",
        file=_RUN,
        before="            self._give(before)\n",
        after="",
        tests=(f"{_STORIES}::test_what_does_not_fit_changes_nothing",),
        paired="what the optimizer does not take, after the others took theirs",
    ),
    Mutant(
        name="another-thread-is-believed",
        rule="G21",
        file=_RUN,
        before="if not self.digests and timeline.trained_in",
        after="if False and timeline.trained_in",
        tests=(f"{_STORIES}::test_a_save_from_another_thread_than_trains_needs_digests",),
        paired="a save from the main thread",
    ),
    Mutant(
        name="tensors-before-their-values",
        rule="G21",
        file=_TORCH,
        before="        self._run.give(values)\n        self._run.write(arrays)\n",
        after="        self._run.write(arrays)\n        self._run.give(values)\n",
        tests=(f"{_STORIES}::test_what_does_not_fit_changes_nothing",),
        paired="a loader of another order",
    ),
    Mutant(
        name="equal-words-of-two-speakers",
        rule="G23",
        file=_STORE,
        before="secrets.token_hex(_NONCE_LENGTH // 2)",
        after='"0" * _NONCE_LENGTH',
        tests=("tests/torch/test_store_group.py::test_of_many_speakers_one_is_heard",),
        paired="two processes that say the same",
    ),
)
