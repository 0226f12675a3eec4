"""A state machine that compares any store with a model: random calls, and after each one everything that can be seen.

    class MyStoreMachine(QueueMachine):
        def make_store(self, dice: Dice) -> Store:
            return MyStore(dice)

    def test_my_store_does_what_the_model_does() -> None:
        run_state_machine_as_test(MyStoreMachine)

It must not know any store: it makes its calls through the public blocking API.
Start in `queue_model.py`, the model; `rules.py` has the last of the machine's rules.
"""

# ruff: noqa: E402  (the extra is named before an import fails for want of it)

from holdfast.model.extras import require_extra

require_extra("testing", "holdfast.testing.machine")

from holdfast.testing.machine.rules import QueueMachine

__all__ = ["QueueMachine"]
