"""A Hypothesis state machine that makes random calls to a store and compares everything visible with a model.

    class MyStoreMachine(QueueMachine):
        def make_store(self, dice: Dice) -> Store:
            return MyStore(dice)

    def test_my_store_does_what_the_model_does() -> None:
        run_state_machine_as_test(MyStoreMachine)

The machine must not depend on a particular store: it uses only the public blocking API and the test clock.
Start in `queue_model.py` for the model and in `rules.py` for the machine.
"""

# ruff: noqa: E402  (a missing extra is reported by name before an import fails)

from holdfast.model.extras import require_extra

require_extra("testing", "holdfast.testing.machine")

from holdfast.testing.machine.rules import QueueMachine

__all__ = ["QueueMachine"]
