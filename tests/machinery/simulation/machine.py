"""The machine that a simulated server runs on: its process dies and is started again, its disk stays."""

from collections import Counter
from collections.abc import Callable
from typing import cast

from holdfast.dice import Dice
from holdfast.model.errors import HoldfastError
from holdfast.server.compose import Core
from holdfast.server.settings import Settings
from holdfast.stores.contract import Store
from tests.machinery.history import Opened, PowerCut, Recorder, Stepped
from tests.machinery.simulation.disk import DiskRates, SimulatedDisk
from tests.machinery.simulation.loop import SeededLoop, Task
from tests.machinery.simulation.media import Medium
from tests.machinery.simulation.network import Network, Serving
from tests.machinery.simulation.plan import Plan
from tests.machinery.simulation.runtime import OffsetClock, SimulatedRuntime

_SETTINGS = Settings()
_LONGEST_DOWN_MS = 400
_SOON_MS = 25


class Machine:
    def __init__(
        self,
        loop: SeededLoop,
        medium: Medium,
        dice: Dice,
        plan: Plan,
        *,
        seen: Counter[str],
        on_broken: Callable[[str], None],
    ) -> None:
        self.disk_rates = DiskRates()
        self.network = Network(
            loop,
            lambda: self._serving,
            dice,
            plan.calm_network,
            seen=seen,
            on_heard=self._was_heard,
            on_broken=on_broken,
        )
        self._loop = loop
        self._medium = medium
        self._dice = dice
        self._plan = plan
        self._seen = seen
        self._on_broken = on_broken
        self._recorder: Recorder | None = None
        self._sessions = 0
        self._counted = 0
        # What happens with the event of a number (a claim takes effect, its answer or a verdict's is heard), and with
        # the next call of a name.
        self.at_event: dict[int, list[Callable[[], None]]] = {}
        self.at_next: dict[str, list[Callable[[], None]]] = {}
        self._offset_ms = 0
        self._process: SimulatedRuntime | None = None
        self._disk: SimulatedDisk | None = None
        self._serving: Serving | None = None

    def now_ms(self) -> int:
        """By the machine's clock, which leases and TTLs go by."""
        return self._loop.now_ms + self._offset_ms

    @property
    def is_up(self) -> bool:
        return self._serving is not None and self._disk is not None and not self._disk.has_stopped

    def record(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def start(self) -> None:
        self._sessions += 1
        self._say(Opened(session=self._sessions))
        clock = OffsetClock(self._loop, self._offset_ms)
        process = SimulatedRuntime(
            self._loop, clock, self._dice, has_turns=self._plan.has_turns, on_broken=self._on_broken
        )
        self._process = process
        self._disk = SimulatedDisk(
            self._medium.store(),
            self._loop,
            self._dice,
            self.disk_rates,
            claims_inline=self._plan.claims_inline,
            seen=self._seen,
            sync=self._medium.sync,
            on_effect=self._took_effect,
            on_stop=lambda: self._restart_later(process),
        )
        core = Core(cast(Store, self._disk), process, _SETTINGS, self._dice)
        process.begin(core.open(), lambda task: self._opened(task, Serving(core, process)))

    def set_rates(self, disk: DiskRates) -> None:
        self.disk_rates = disk
        if self._disk is not None:
            self._disk.rates = disk

    # --- How it ends -----------------------------------------------------------------------------------------------

    def crash(self, *, power_cut: bool = False) -> None:
        """The process vanishes, wherever it is."""
        if self._process is None:
            return  # it is down already
        power_cut = power_cut and self._medium.can_lose_power
        self._seen["power cut" if power_cut else "crash"] += 1
        self._end(self._process)
        self._medium.crash(self._dice.roll(), power_cut=power_cut)
        if power_cut:
            self._say(PowerCut())

    def close(self, step_ms: int) -> None:
        """The process is asked to end, and ends in order; then it is started again."""
        if self._serving is not None:
            serving, self._serving = self._serving, None
            self._seen["closed"] += 1
            serving.process.begin(serving.core.close(), lambda task: self._closed(serving.process, step_ms))

    def vanish(self) -> None:
        """The end of the simulation: nothing is left on its way."""
        if self._process is not None:
            self._end(self._process)

    def start_later(self, step_ms: int = 0) -> None:
        """Unless it is up. Meanwhile its clock may have been set."""

        def start() -> None:
            if self._process is None:
                if step_ms:
                    self._step_clock(step_ms)
                self.start()

        self._loop.call_at(self._loop.now_ms + 1 + int(self._dice.roll() * _LONGEST_DOWN_MS), start)

    def _took_effect(self, name: str) -> None:
        """A call has changed what is stored. What goes with that comes soon, and not within it."""
        for strike in self.at_next.pop(name, ()):
            self._strike_soon(strike)
        if name == "claim":
            self._count()

    def _was_heard(self, name: str) -> None:
        """A client has its answer."""
        if name in ("claim", "settle"):
            self._count()

    def _count(self) -> None:
        self._counted += 1
        for strike in self.at_event.pop(self._counted, ()):
            self._strike_soon(strike)

    def _strike_soon(self, strike: Callable[[], None]) -> None:
        self._loop.call_at(self._loop.now_ms + int(self._dice.roll() ** 3 * _SOON_MS), strike)

    def _step_clock(self, step_ms: int) -> None:
        self._seen["clock forward" if step_ms > 0 else "clock back"] += 1
        was = self.now_ms()
        self._offset_ms += step_ms
        self._say(Stepped(was=was, at=self.now_ms()))

    def _restart_later(self, process: SimulatedRuntime) -> None:
        """Restart the server after its store has stopped, as a supervisor does."""

        def restart() -> None:
            if self._process is process:
                self.crash()
                self.start_later()

        self._loop.call_at(self._loop.now_ms + 1 + int(self._dice.roll() * _LONGEST_DOWN_MS), restart)

    def _opened(self, task: Task, serving: Serving) -> None:
        if task.error is None:
            self._serving = serving
        elif isinstance(task.error, HoldfastError):
            self._restart_later(serving.process)
        else:
            self._on_broken(f"the store did not open: {task.error!r}")

    def _closed(self, process: SimulatedRuntime, step_ms: int) -> None:
        if self._process is process:
            self._end(process)
            self._medium.sync()
            self.start_later(step_ms)

    def _end(self, process: SimulatedRuntime) -> None:
        self._process = self._disk = self._serving = None
        process.kill()
        self.network.cut()

    def _say(self, line: Opened | PowerCut | Stepped) -> None:
        if self._recorder is not None:
            self._recorder.say(line)
