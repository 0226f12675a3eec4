"""Threads for blocking functions."""

from concurrent.futures import ThreadPoolExecutor


class ThreadExecutors:
    """Single threads for blocking functions, by number. Each starts when its number is first used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._executors: dict[int, ThreadPoolExecutor] = {}

    def __getitem__(self, thread: int) -> ThreadPoolExecutor:
        executor = self._executors.get(thread)
        if executor is None:
            name = self._name if thread == 0 else f"{self._name}-{thread}"
            executor = self._executors[thread] = ThreadPoolExecutor(1, thread_name_prefix=name)
        return executor

    def shutdown(self) -> None:
        """End the threads, after the functions that wait for them."""
        for executor in self._executors.values():
            executor.shutdown()
