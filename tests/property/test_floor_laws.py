"""Laws that hold for every profile, command and text, not only for those somebody thought of."""

from __future__ import annotations

import made_up
from hypothesis import given
from hypothesis import strategies as st

from kis.caller.mountspec import MountSpec, either_mount, short_mount
from kis.cli.flags import RUN_FLAGS, Flag, read_flags
from kis.command import Command
from kis.errors import SandboxError, escaped, quoted
from kis.identity import MountSource
from kis.limits import Limits
from kis.profile import Device, Mount, NetworkPolicy, Profile, Secret, Tmpfs
from kis.units import SIZE_UNITS, parse_duration, parse_size
from kis.vocabulary import GRANTABLE_CAPABILITIES, UNLIMITED, Demand, NetworkMode, Tier

ANY_BYTES = st.binary(max_size=40)
# As words of a command line arrive: UTF-8, other bytes as surrogates, never a NUL.
WORDS = ANY_BYTES.map(lambda b: b.replace(b"\0", b"").decode("utf-8", "surrogateescape"))
NAMES = st.binary(min_size=1, max_size=20).map(lambda b: b.translate(None, b"\0/"))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: b"/top/" + b"/".join(names))


def source(kind: str = "directory", path: bytes = b"/host") -> MountSource:
    return made_up.source(path, kind)


SOURCE = source()
GRANTS: dict[str, st.SearchStrategy[object]] = {
    "network": st.sampled_from(list(NetworkMode)).map(NetworkPolicy),
    "mounts": st.sampled_from(["ro", "rw"]).map(lambda mode: (Mount(SOURCE, "/m", mode),)),
    "devices": st.just((Device(source("device", b"/dev/x")),)),
    "tmpfs": st.just((Tmpfs("/t"),)),
    "capabilities": st.sets(st.sampled_from(list(GRANTABLE_CAPABILITIES)), min_size=1),
    "writable_root": st.just(True),
    "secrets": st.binary(max_size=8).map(lambda content: (Secret("s", content),)),
    "limits": st.builds(
        Limits,
        st.none() | st.integers(1, 4096) | st.just(UNLIMITED),
        st.none() | st.floats(0.001, 1000) | st.just(UNLIMITED),
        st.none() | st.integers(1, 1 << 30) | st.just(UNLIMITED),
    ),
}
PROFILES = st.fixed_dictionaries({}, optional=GRANTS).map(lambda parts: Profile(**parts))  # type: ignore[arg-type]
TIERS = st.sampled_from(list(Tier))

# What each grant may take away: only the denial that it is the opposite of.
DENIAL_OF = {
    "network": {Demand.NETWORK_OFF},
    "limits": {Demand.OPEN_FILES, Demand.WALL_TIME, Demand.OUTPUT_CAP},
}


@given(PROFILES)
def test_deny_all_is_the_identity(profile: Profile) -> None:
    """Saying nothing more changes nothing; building from an equal set of words gives an equal."""
    again = profile.replace()
    assert again == profile
    assert hash(again) == hash(profile)
    empty = Profile(NetworkPolicy(), (), (), (), (), Limits(), False, None, ())
    assert empty == Profile()


@given(PROFILES, TIERS, st.sampled_from(sorted(GRANTS)), st.data())
def test_a_grant_never_removes_another_denial(
    profile: Profile, tier: Tier, field: str, data: st.DataObject
) -> None:
    plain = profile.replace(**{field: getattr(Profile(), field)})
    granted = profile.replace(**{field: data.draw(GRANTS[field])})
    lost = plain.demands(tier) - granted.demands(tier)
    assert lost <= DENIAL_OF.get(field, set())


@given(PROFILES, TIERS)
def test_equal_profiles_make_equal_demands(profile: Profile, tier: Tier) -> None:
    assert profile.demands(tier) == profile.replace().demands(tier)


@given(PROFILES)
def test_process_tier_waives_no_limit_that_was_named(profile: Profile) -> None:
    wanted = profile.demands(Tier.PROCESS)
    limits = profile.limits
    assert (Demand.WALL_TIME in wanted) == (limits.wall_seconds is not UNLIMITED)
    assert (Demand.OUTPUT_CAP in wanted) == (limits.output_bytes is not UNLIMITED)
    assert (Demand.OPEN_FILES in wanted) == isinstance(limits.open_files, int)


@given(st.binary() | st.text())
def test_quoted_text_cannot_steer_a_terminal(text: bytes | str) -> None:
    shown = quoted(text)
    assert shown.isprintable()
    shown.encode("utf-8")


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_quoted_texts_look_alike_only_if_they_are(one: bytes, two: bytes) -> None:
    assert (quoted(one) == quoted(two)) == (one == two)
    assert (escaped(one) == escaped(two)) == (one == two)


@given(PATHS)
def test_mount_target_is_kept_or_refused(path: bytes) -> None:
    """No byte of a target is lost or moved; what is not itself when normalised is refused."""
    names = path.split(b"/")
    try:
        target = Mount(SOURCE, path).target
    except SandboxError:
        assert b".." in names
    else:
        assert target.split(b"/") == [b"", *(n for n in names if n not in (b"", b"."))]


@given(st.lists(ANY_BYTES, min_size=1), st.dictionaries(ANY_BYTES, ANY_BYTES))
def test_command_keeps_every_byte_or_is_refused(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    bad = any(b"\0" in word for word in (*argv, *env, *env.values()))
    bad = bad or not argv[0] or any(not name or b"=" in name for name in env)
    try:
        command = Command(argv, env)
    except SandboxError:
        assert bad
    else:
        assert not bad
        assert command.argv == tuple(argv)
        assert dict(command.env) == env


@given(WORDS, WORDS, st.sampled_from([f for f in RUN_FLAGS if f.value]))
def test_no_text_moves_from_value_to_flag(value: str, word: str, flag: Flag) -> None:
    """Dashes, blanks, colons, newlines, bytes: the word after a flag is its value, no more."""
    for spelling in flag.spellings:
        pairs, command = read_flags([spelling, value, "--", word, "--json"], RUN_FLAGS)
        assert pairs == [(flag.name, value)]
        assert command == [word, "--json"]


@given(WORDS.filter(bool), WORDS.filter(bool))
def test_long_mount_takes_every_path(path: str, target: str) -> None:
    def field(key: str, text: str) -> str:
        return f'"{key}={text.replace(chr(34), chr(34) * 2)}"'

    spec = either_mount(f"{field('source', path)},{field('target', target)},mode=rw", "--mount")
    encode = {"encoding": "utf-8", "errors": "surrogateescape"}
    assert spec == MountSpec(path.encode(**encode), target.encode(**encode), "rw")


@given(WORDS)
def test_short_mount_never_guesses(text: str) -> None:
    """What comes back is said by the text, colon for colon."""
    try:
        spec = short_mount(text, "-v")
    except SandboxError:
        return
    raw = text.encode("utf-8", "surrogateescape")
    rest = raw.removeprefix(spec.source)
    assert b":" not in spec.source
    assert rest in (
        b"",
        b":" + spec.mode.encode(),
        b":" + spec.target,
        b":" + spec.target + b":" + spec.mode.encode(),
    )


@given(st.integers(0, 1 << 50), st.sampled_from(sorted(SIZE_UNITS)))
def test_size_is_number_times_unit(number: int, unit: str) -> None:
    assert parse_size(f"{number}{unit}") == number * SIZE_UNITS[unit]


@given(st.text(max_size=12))
def test_units_answer_or_refuse(text: str) -> None:
    for parse in (parse_size, parse_duration):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert "must be" in str(error) or "out of bounds" in str(error)  # noqa: PT017
