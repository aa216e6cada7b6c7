"""How long a cold one-shot takes, beside its peers: run with `python bench/cold.py`.

Measures from outside, one case after another in every round, so that the machine's moods fall on
all alike. Two groups: inside a resident process (library against `posix_spawn`, bubblewrap, runc)
and whole command lines (kis against python, bubblewrap, firejail, podman). Peers that are not
installed are left out, and the report says so. Ratios are medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SLOW_EVERY = 10
"""Cases of tens of milliseconds and more take part in every tenth round only."""
WARM_UP_ROUNDS = 3
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GOALS = (
    ("cold one-shot, resident", "library, dynamic", "bubblewrap, dynamic", 0.6),
    ("cold one-shot, resident, static", "library, static", "bubblewrap, static", 0.6),
    ("command line", "command line: kis", "command line: python -I -S -c pass", 5.0),
    ("command line against podman", "command line: kis", "command line: podman", 1 / 3),
)


def use_the_checkout() -> None:
    """Run under the checkout's own `.venv` where there is one, else import from `src`."""
    python = CHECKOUT / ".venv" / "bin" / "python"
    if python.exists() and Path(sys.prefix) != CHECKOUT / ".venv":
        os.execv(python, [str(python), *sys.argv])
    try:
        import kis  # noqa: F401
    except ImportError:
        sys.path.insert(0, str(CHECKOUT / "src"))


class Case:
    """Something to run and time; `prepare` makes it, or says why it cannot be had."""

    def __init__(self, name: str, run: Callable[[], None], slow: bool = False) -> None:
        self.name, self.run, self.slow = name, run, slow
        self.milliseconds: list[float] = []
        self.by_round: dict[int, float] = {}

    def measure(self, at: int) -> None:
        start = time.perf_counter_ns()
        self.run()
        taken = (time.perf_counter_ns() - start) / 1e6
        if at >= 0:
            self.milliseconds.append(taken)
            self.by_round[at] = taken


def spawned(argv: list[str], actions: list[tuple[object, ...]] | None = None) -> Callable[[], None]:
    """A program started by posix_spawn and waited for; output goes to /dev/null."""
    program = shutil.which(argv[0], path=SYSTEM_PATH) or argv[0]
    null = os.open(os.devnull, os.O_RDWR)
    to_null = [(os.POSIX_SPAWN_DUP2, null, number) for number in (0, 1, 2)]
    environment = {"PATH": SYSTEM_PATH, "HOME": "/tmp", "LANG": "C.UTF-8"}
    extra = os.environ.get("PYTHONPATH") or str(CHECKOUT / "src")
    environment["PYTHONPATH"] = extra

    def run() -> None:
        pid = os.posix_spawn(program, argv, environment, file_actions=[*to_null, *(actions or [])])
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != 0:
            raise SystemExit(f"{argv} ended with {status}")

    return run


# The dangerous dozen, as a careful user of bubblewrap would deny them.
DENIED = {
    "x86_64": (101, 250, 248, 249, 321, 298, 323, 425, 165, 272, 175, 246),
    "aarch64": (117, 219, 217, 218, 280, 241, 282, 425, 40, 97, 105, 104),
}


def filter_program() -> bytes:
    """A seccomp program: those calls answer EPERM, all others pass."""
    load_number, equal, answer = 0x20, 0x15, 0x06
    numbers = DENIED[platform.machine()]
    steps = [(load_number, 0, 0, 0)]
    steps += [(equal, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(answer, 0, 0, 0x7FFF0000), (answer, 0, 0, 0x00050001)]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def bubblewrap(room: Path, argv: list[str]) -> Callable[[], None] | str:
    """The same namespaces, proc, dev, tmpfs, no capabilities, a filter."""
    if shutil.which("bwrap", path=SYSTEM_PATH) is None:
        return "not installed"
    program = room / "filter.bpf"
    program.write_bytes(filter_program())
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            words += ["--symlink", f"usr/{name}", f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            words += ["--ro-bind", f"/{name}", f"/{name}"]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    words += ["--ro-bind", str(room / "static"), "/static", "--seccomp", "9", "--"]
    action = (os.POSIX_SPAWN_OPEN, 9, str(program), os.O_RDONLY, 0)
    return spawned([*words, *argv], [action])


def runc(room: Path) -> Callable[[], None] | str:
    """A bundle on the host's own tree, with runc's default specification."""
    if shutil.which("runc", path=SYSTEM_PATH) is None:
        return "not installed"
    bundle = room / "bundle"
    (bundle / "rootfs").mkdir(parents=True)
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"]["terminal"] = False
    spec["process"]["args"] = ["/usr/bin/true"]
    options = ["rbind", "ro"]
    bind = {"destination": "/usr", "type": "bind", "source": "/usr", "options": options}
    spec["mounts"].insert(0, bind)
    for name in ("bin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", bundle / "rootfs" / name)
    (bundle / "rootfs" / "usr").mkdir()
    (bundle / "config.json").write_text(json.dumps(spec))
    argv = ["runc", "--root", str(room / "runc"), "run", "--bundle", str(bundle)]
    tried = subprocess.run([*argv, "kis-bench"], capture_output=True, text=True)
    if tried.returncode != 0:
        return cannot_start(tried)
    return spawned([*argv, "kis-bench"])


def cannot_start(tried: subprocess.CompletedProcess[str]) -> str:
    """The last words of a peer that is here and does not work."""
    return "installed, but cannot start: " + (tried.stderr.strip().splitlines() or ["?"])[-1][:120]


def firejail() -> Callable[[], None] | str:
    if shutil.which("firejail", path=SYSTEM_PATH) is None:
        return "not installed"
    words = ["firejail", "--quiet", "--noprofile", "--net=none", "--private-tmp", "--private-dev"]
    words += ["--caps.drop=all", "--seccomp", "/usr/bin/true"]
    if subprocess.run(words, capture_output=True).returncode != 0:
        return "installed, but cannot start here"
    return spawned(words)


def podman(room: Path) -> Callable[[], None] | str:
    if shutil.which("podman", path=SYSTEM_PATH) is None:
        return "not installed"
    root = room / "podman-root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(room / "static" / "true", root / "bin" / "true")
    words = ["podman", "run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024"]
    words += ["--ulimit", "nproc=1024:1024", "--rootfs", str(root), "/bin/true"]
    tried = subprocess.run(words, capture_output=True, text=True)
    if tried.returncode != 0:
        return cannot_start(tried)
    return spawned(words)


def static_true(room: Path) -> bool:
    """Make a static program that does nothing; whether a compiler was found."""
    place = room / "static"
    place.mkdir()
    place.chmod(0o755)
    (room / "true.c").write_text("int main(void) { return 0; }\n")
    for compiler in ("musl-gcc", "gcc", "cc"):
        if shutil.which(compiler) is None:
            continue
        words = [compiler, "-static", "-Os", "-s", "-o", str(place / "true"), str(room / "true.c")]
        if subprocess.run(words, capture_output=True).returncode == 0:
            return True
    shutil.copy("/usr/bin/true", place / "true")
    return False


def library_cases(room: Path) -> list[Case]:
    """The one-shot through the library, in this very process."""
    from kis import Command, Engine, Mount, Profile

    engine = Engine()
    base = engine.admit_host_base()
    descriptor = os.open(room / "static", os.O_PATH | os.O_DIRECTORY)
    static = Profile(mounts=[Mount(engine.admit_mount(descriptor), "/static")])

    def one_shot(argv: list[str], profile: Profile) -> Callable[[], None]:
        command = Command(argv)
        return lambda: void(engine.run(command, profile, base, tier="container").check())

    return [
        Case("library, dynamic", one_shot(["/usr/bin/true"], Profile())),
        Case("library, static", one_shot(["/static/true"], static)),
    ]


def void(_: object) -> None:
    """Drop a result."""


def interpreter() -> str:
    """The interpreter itself, not a version manager's shim, which costs tens of milliseconds."""
    own = CHECKOUT / ".venv" / "bin" / "python"
    return str(own) if own.exists() else os.path.realpath(sys.executable)


def all_cases(room: Path) -> tuple[list[Case], dict[str, str]]:
    """Every case that can be had here, and why the others cannot."""
    static_true(room)
    python = interpreter()
    script = CHECKOUT / ".venv" / "bin" / "kis"
    kis = [str(script)] if script.exists() else [python, "-m", "kis"]
    kis += ["sandbox", "run", "--tier", "container", "--", "/usr/bin/true"]
    cases = [
        Case("posix_spawn, dynamic", spawned(["/usr/bin/true"])),
        Case("posix_spawn, static", spawned([str(room / "static" / "true")])),
        *library_cases(room),
        Case("command line: python -I -S -c pass", spawned([python, "-I", "-S", "-c", "pass"])),
        Case("command line: kis", spawned(kis)),
    ]
    peers: list[tuple[str, Callable[[], None] | str, bool]] = [
        ("bubblewrap, dynamic", bubblewrap(room, ["/usr/bin/true"]), False),
        ("bubblewrap, static", bubblewrap(room, ["/static/true"]), False),
        ("runc", runc(room), True),
        ("command line: firejail", firejail(), True),
        ("command line: podman", podman(room), True),
    ]
    missing = {}
    for name, run, slow in peers:
        if isinstance(run, str):
            missing[name] = run
        else:
            cases.append(Case(name, run, slow))
    return cases, missing


def measure(cases: list[Case], rounds: int) -> None:
    """Interleave: every case once in every round, in an order that turns by one each time."""
    for at in range(-WARM_UP_ROUNDS, rounds):
        turn = at % len(cases)
        for case in cases[turn:] + cases[:turn]:
            if not case.slow or at % SLOW_EVERY == 0:
                case.measure(at)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def ratio(cases: dict[str, Case], name: str, peer: str) -> float | None:
    """The median of the ratios within each round, where both took part."""
    if name not in cases or peer not in cases:
        return None
    own, other = cases[name].by_round, cases[peer].by_round
    values = [own[at] / other[at] for at in own if at in other]
    return statistics.median(values) if values else None


def report(cases: list[Case], missing: dict[str, str], rounds: int) -> dict[str, object]:
    by_name = {case.name: case for case in cases}
    rows = {
        case.name: {
            "p50_ms": statistics.median(case.milliseconds),
            "p95_ms": percentile(case.milliseconds, 0.95),
            "count": len(case.milliseconds),
            "x_posix_spawn": ratio(by_name, case.name, "posix_spawn, dynamic"),
            "x_bubblewrap": ratio(by_name, case.name, "bubblewrap, dynamic"),
        }
        for case in cases
        if case.milliseconds
    }
    goals = []
    for what, name, peer, most in GOALS:
        found = ratio(by_name, name, peer)
        met = None if found is None else found <= most
        row = {"what": what, "of": name, "to": peer, "ratio": found, "goal": most, "met": met}
        goals.append(row)
    machine = {"kernel": platform.release(), "machine": platform.machine(), "cpus": os.cpu_count()}
    machine["python"] = platform.python_version()
    return {"rounds": rounds, "machine": machine, "cases": rows, "missing": missing, "goals": goals}


def show(result: dict[str, object]) -> None:
    """Print the report for people."""
    print(f"{'':38}{'p50 ms':>9}{'p95 ms':>9}{'x spawn':>9}{'x bwrap':>9}{'n':>6}")
    cases = result["cases"]
    assert isinstance(cases, dict)
    for name, row in cases.items():
        ratios = [row["x_posix_spawn"], row["x_bubblewrap"]]
        shown = "".join(f"{'-' if value is None else format(value, '.2f'):>9}" for value in ratios)
        print(f"{name:38}{row['p50_ms']:9.2f}{row['p95_ms']:9.2f}{shown}{row['count']:6}")
    missing = result["missing"]
    assert isinstance(missing, dict)
    for name, why in missing.items():
        print(f"{name:38}{why}")
    print()
    goals = result["goals"]
    assert isinstance(goals, list)
    for goal in goals:
        said = "not measured" if goal["ratio"] is None else f"{goal['ratio']:.2f}"
        mark = {True: "met", False: "MISSED", None: ""}[goal["met"]]
        print(f"goal: {goal['what']:34} {said:>12} (<= {goal['goal']:.2f} x {goal['to']}) {mark}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Cold one-shots, beside the peers.")
    parser.add_argument("--rounds", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument("--json", metavar="FILE", help="write the result there as well")
    options = parser.parse_args()
    use_the_checkout()
    with tempfile.TemporaryDirectory(prefix="kis-bench-") as name:
        room = Path(name)
        room.chmod(0o755)
        cases, missing = all_cases(room)
        measure(cases, options.rounds)
    result = report(cases, missing, options.rounds)
    show(result)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
