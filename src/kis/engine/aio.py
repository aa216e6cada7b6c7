"""The asyncio driver: the same life and link, fed by an event loop.

Knows: how to wait in a loop. Must not know: what the events mean. Called by: api, and by
nothing on the blocking path, which must not pay for importing asyncio.
"""

from __future__ import annotations

import asyncio
import select

from kis.engine.admission import refuse_wrong_types
from kis.engine.engine import Attempt, Core, raise_unless_again
from kis.engine.exchange import Exchange
from kis.engine.report import Report
from kis.engine.sandbox import cause_of_end, end, live, refuse_other_user, warn_not_closed
from kis.errors import SandboxError
from kis.vocabulary import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Self

    from kis.command import Command, Outcome
    from kis.engine.backend import Backend, Finding
    from kis.engine.host import Host
    from kis.engine.life import Sink
    from kis.engine.link import Link
    from kis.identity import Base
    from kis.profile import Profile
    from kis.vocabulary import Tier


class _Wait:
    """Feeds one link from a loop until a condition holds."""

    def __init__(self, link: Link, done: Callable[[], bool]) -> None:
        self._link = link
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._readers: set[int] = set()
        self._writers: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self) -> None:
        try:
            self._arrange()
            await self._finished
        finally:
            self._watch({})
            if self._timer is not None:
                self._timer.cancel()

    def _arrange(self) -> None:
        """Register what the link now waits for, or finish."""
        if self._finished.done():
            return
        if self._done():
            self._finished.set_result(None)
            return
        self._watch(self._link.wanted())
        if self._timer is not None:
            self._timer.cancel()
        left = self._link.seconds_left()
        self._timer = None if left is None else self._loop.call_later(left, self._act, None)

    def _watch(self, wanted: dict[int, int]) -> None:
        readers = {number for number, events in wanted.items() if events & select.POLLIN}
        writers = {number for number, events in wanted.items() if events & select.POLLOUT}
        for number in self._readers - readers:
            self._loop.remove_reader(number)
        for number in self._writers - writers:
            self._loop.remove_writer(number)
        for number in readers - self._readers:
            self._loop.add_reader(number, self._act, number)
        for number in writers - self._writers:
            self._loop.add_writer(number, self._act, number)
        self._readers, self._writers = readers, writers

    def _act(self, descriptor: int | None) -> None:
        if self._finished.done():
            return
        try:
            if descriptor is not None:
                self._unwatch_closing(descriptor)
            self._link.tick()
            self._arrange()
        except BaseException as error:  # noqa: BLE001  # it is raised where it is awaited
            if not self._finished.done():
                self._finished.set_exception(error)

    def _unwatch_closing(self, descriptor: int) -> None:
        """Handle a descriptor; one that is closed by it must not be left in the loop's poll.

        A closed number can be given out again at once, so the loop lets go of all of them first:
        registering anew costs microseconds, a stale watch a wrong event.
        """
        self._watch({})
        self._link.handle(descriptor)


async def wait(link: Link, done: Callable[[], bool]) -> None:
    """Let a link act on what happens until ``done``."""
    await _Wait(link, done)()


async def finish(link: Link) -> None:
    """Kill what is left of a sandbox, wait for it to be dead, and close every descriptor.

    Not to be cancelled: a sandbox that is not waited for would be one that outlives. In a fork of
    the process that launched it descriptors are closed and nothing else is done.
    """
    if not link.is_ours():
        link.close()
        return

    async def ending() -> None:
        try:
            link.kill()
            await wait(link, link.is_gone)
        finally:
            link.close()

    task = asyncio.ensure_future(ending())
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError


class AsyncSandbox:
    """A live sandbox, as ``Sandbox``, for asyncio: ``async with engine.create(…) as sandbox``."""

    def __init__(self, id: str, link: Link, attempt: Attempt) -> None:
        self.id = id
        self._link: Link | None = link
        self._attempt = attempt
        self._claims = attempt.backend.claims(attempt.here)
        self._ended_by = ""
        self._lock = asyncio.Lock()

    @property
    def tier(self) -> Tier:
        return self._live().plan.tier

    @property
    def backend(self) -> str:
        return self._live().plan.backend

    async def run(
        self,
        command: Command,
        *,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
    ) -> Outcome:
        """Run one command to its end, as ``Sandbox.run``. Cancelling ends the sandbox."""
        refuse_wrong_types(command=command)
        self._live()  # before the lock, which a fork may have caught held
        async with self._lock:
            link, profile = self._live(), self._attempt.profile
            refuse_other_user(link, profile, self._claims, self._attempt.uid, command)
            exchange = Exchange(
                link, profile, command, sandbox=self.id, sinks=(on_stdout, on_stderr)
            )
            try:
                exchange.begin()
                await wait(link, link.is_idle)
            except BaseException:
                await self._end(cause_of_end(link, "interruption"))
                raise
            if link.life.gone:
                await self._end(cause_of_end(link, "death"))
            return exchange.outcome()

    async def close(self) -> None:
        """End the sandbox, as ``Sandbox.close``. More than once does no harm."""
        if self._link is not None and not self._link.is_ours():
            await self._end("closed")
            return
        async with self._lock:
            link = self._link
            if link is not None:
                link.stop()
                await wait(link, link.is_gone)
            await self._end("closed")
            if link is not None and link.life.failure is not None:
                raise link.life.failure

    async def _end(self, ended_by: str) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._ended_by = ended_by
            try:
                await finish(link)
            finally:
                if link.is_ours():
                    self._attempt.release()

    def _live(self) -> Link:
        return live(self._link, self._ended_by)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        link: Link | None = getattr(self, "_link", None)
        if link is None:
            return
        if link.is_ours():
            warn_not_closed(self.id)
        end(link)
        if link.is_ours():
            self._attempt.release()

    def __repr__(self) -> str:
        return f"<AsyncSandbox {self.id}{'' if self._link else ' ended'}>"


class _Creation:
    """What ``create`` returns: to be awaited, or entered with ``async with``."""

    def __init__(self, engine: AsyncEngine, attempt: Callable[[], Attempt]) -> None:
        self._engine = engine
        self._attempt = attempt
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[Any, None, AsyncSandbox]:
        return self._engine.created(self._attempt()).__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self
        return self._sandbox

    async def __aexit__(self, *_exception: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()


class AsyncEngine(Core):
    """The engine for asyncio. Same inputs, same outcomes, same errors as ``Engine``."""

    def create(
        self,
        profile: Profile,
        base: Base,
        *,
        tier: Tier | str | None = None,
        backend: str | None = None,
    ) -> _Creation:
        """Make a live sandbox: await it, or use it with ``async with``."""
        refuse_wrong_types(profile=profile, base=base)
        return _Creation(self, lambda: Attempt(self, profile, base, None, tier, backend))

    async def created(self, attempt: Attempt) -> AsyncSandbox:
        """Launch an attempt and return it live."""
        try:
            return AsyncSandbox(attempt.id, await self._greeted(attempt), attempt)
        except BaseException:
            attempt.release()
            raise

    async def _greeted(self, attempt: Attempt) -> Link:
        while True:
            link = attempt.launch(one_shot=False)
            try:
                await wait(link, link.is_greeted)
                if link.life.live:
                    return link
            except BaseException:
                await finish(link)
                raise
            await finish(link)
            raise_unless_again(attempt, link)

    async def run(
        self,
        command: Command,
        profile: Profile,
        base: Base,
        *,
        tier: Tier | str | None = None,
        backend: str | None = None,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
    ) -> Outcome:
        """Run one command in a sandbox of its own, as ``Engine.run``. Cancelling kills it."""
        refuse_wrong_types(command=command, profile=profile, base=base)
        attempt = Attempt(self, profile, base, command, tier, backend)
        try:
            while True:
                link = attempt.launch(one_shot=True)
                try:
                    exchange = Exchange(
                        link, profile, command, sandbox=attempt.id, sinks=(on_stdout, on_stderr)
                    )
                    exchange.begin()
                    await wait(link, link.is_gone)
                finally:
                    await finish(link)
                if link.life.fault is None:
                    return exchange.outcome()
                raise_unless_again(attempt, link)
        finally:
            attempt.release()

    async def backends(self) -> list[Report]:
        """Return what every backend is here; one that seems usable is tried."""
        here = self.host()
        reports = []
        for backend in self.table:
            finding = backend.probe(here)
            if finding.status is Status.USABLE:
                finding = await self._tried(backend, finding, here)
            reports.append(Report(backend, finding, here))
        return reports

    async def _tried(self, backend: Backend, finding: Finding, here: Host) -> Finding:
        try:
            sandbox = await self.created(self.canary(backend, here))
            await sandbox.close()
        except SandboxError as error:
            return finding.replace(status=Status.UNUSABLE, reason=error.message, hint=error.hint)
        return finding
