"""What is worked out once for equal inputs: the backend chosen, its plan, the plan's encoding.

Knows: that a plan depends on its id range only by adding to some numbers, and checks it.
Must not know: which records those are, or why. Called by: engine. Pure: it remembers nothing that
could not be worked out again, and keeps nobody's secrets or descriptors alive.
"""

from __future__ import annotations

from _weakref import ref

from kis.engine import blob, readback, select
from kis.engine.backend import Request
from kis.errors import Code, SandboxError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from kis.command import Command
    from kis.engine.backend import Backend, Plan
    from kis.engine.blob import Step
    from kis.engine.host import Host
    from kis.engine.readback import PlannedMounts
    from kis.identity import Base
    from kis.profile import Profile
    from kis.vocabulary import Tier

EXAMPLE_IDS = 0x70000000  # stands for the range that a plan which is only told would get
_REMEMBERED = 16
# Two range starts that no number of a plan is by chance: what differs between them is the range's.
_PROBES = (0x10010000, 0x20020000)


class Prepared:
    """Backend and plan of one set of inputs, for any id range.

    ``again``: it will be asked for more than one range, so what does not move is worked out ahead.
    """

    def __init__(self, backend: Backend, request: Request, *, again: bool) -> None:
        self.backend = backend
        # Not both: what is remembered must not keep a base alive.
        self._request = None if again else request
        self._records: list[bytes] = []
        self._moving: dict[int, list[int]] = {}
        self._template: Plan | None = None
        if again:
            self._work_out(request)

    def _work_out(self, request: Request) -> None:
        wants_ids = self.backend.wants_ids(request.host)
        first, second = _PROBES if wants_ids else (None, None)
        template = self._template = self._plan(request, first)
        self._records = [blob.record(step) for step in template.steps]
        if wants_ids:
            self._moving = _moving(template.steps, self._plan(request, second).steps)

    def _plan(self, request: Request, start: int | None) -> Plan:
        plan = self.backend.plan(request.replace(ids_start=start))
        self.mounts: PlannedMounts = readback.planned_mounts(plan)
        return plan

    def plan(self, start: int | None) -> Plan:
        """Return the plan for the range that starts there."""
        if self._request is not None:
            return self._plan(self._request, start)
        assert self._template is not None
        if start is None:
            return self._template
        steps = list(self._template.steps)
        for at, places in self._moving.items():
            moved = list(steps[at])
            for place in places:
                moved[place] += start - _PROBES[0]
            steps[at] = tuple(moved)
        return self._template.with_steps(tuple(steps))

    def encoded(self, plan: Plan) -> bytes:
        """Return the blob of a plan that this object made."""
        if self._template is None:
            return blob.encode(plan.steps)
        records = list(self._records)
        for at in self._moving:
            records[at] = blob.record(plan.steps[at])
        return blob.assemble(records)


def _moving(steps: Sequence[Step], other: Sequence[Step]) -> dict[int, list[int]]:
    """Return which numbers of which steps move with the range. Anything else must be equal."""
    moving: dict[int, list[int]] = {}
    for at, (one, two) in enumerate(zip(steps, other, strict=True)):
        if one == two:
            continue
        pairs = enumerate(zip(one, two, strict=True))
        places = [place for place, (here, there) in pairs if here != there]
        if any(two[place] - one[place] != _PROBES[1] - _PROBES[0] for place in places):
            raise SandboxError(Code.INVARIANT_FAILED, "a plan depends on its id range oddly")
        moving[at] = places
    return moving


class Preparations:
    """The last few, by the very objects they were made from. Any number of threads at once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[Prepared, object]] = {}

    def prepare(
        self,
        table: Sequence[Backend],
        here: Host,
        profile: Profile,
        base: Base,
        command: Command | None,
        ids: tuple[int, int],
        tier: Tier | str | None,
        name: str | None,
        plain: frozenset[str],
    ) -> Prepared:
        """Return what these inputs give. Raises as ``select.choose`` and ``Backend.plan`` do."""
        # By identity: host and profile are kept alive here, and an entry ends with its base, so
        # that none of them can lend its id to another object.
        user = None if command is None else command.user
        names = (str(tier), str(name))
        key = (id(here), id(profile), id(base), command is None, user, ids, names, plain)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[0]
        backend = select.choose(table, here, profile, command, tier, name)
        request = Request(profile, base, here, *ids, None, plain)
        again = not (profile.secrets or profile.mounts or profile.devices)
        prepared = Prepared(backend, request, again=again)
        if again:
            while len(self._kept) >= _REMEMBERED:
                self._kept.pop(next(iter(self._kept)), None)
            alive = ref(base, lambda _: self._kept.pop(key, None))
            self._kept[key] = (prepared, (here, profile, alive))
        return prepared

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
