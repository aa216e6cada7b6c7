"""Adds one step to the build: kis-init is compiled and put beside the package.

Knows: which platforms have a native part, and make. Everything else is in pyproject.toml.
Called by: setuptools, for wheels and for editable installs alike.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
INSTALLED = HERE / "src" / "kis" / "_native" / "kis-init"
PACKAGES = HERE / "scripts" / "apt-packages.txt"

# Elsewhere the package installs without it, and every backend reports itself absent.
HAS_NATIVE_PART = sys.platform == "linux" and platform.machine() == "x86_64"


def build_native() -> None:
    """Compile kis-init; end with what to install where a tool is missing."""
    missing = [tool for tool in ("make", "gcc", "musl-gcc") if shutil.which(tool) is None]
    if not missing and not Path("/usr/include/seccomp.h").exists():
        missing = ["seccomp.h"]
    if missing:
        packages = " ".join(PACKAGES.read_text().split())
        sys.exit(
            f"kis: building kis-init needs {', '.join(missing)}.\n"
            f"On Debian and Ubuntu: apt-get install {packages}"
        )
    subprocess.run(["make", "-C", str(NATIVE), "--no-print-directory"], check=True)
    INSTALLED.parent.mkdir(exist_ok=True)
    # Copied beside and renamed: a running kis keeps the file it started from.
    fresh = INSTALLED.with_suffix(".new")
    shutil.copyfile(NATIVE / "build" / "kis-init", fresh)
    fresh.chmod(0o755)
    fresh.replace(INSTALLED)


class BuildWithNative(build_py):
    def run(self) -> None:
        if HAS_NATIVE_PART:
            build_native()
        super().run()


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform of kis-init, and for any Python: nothing links to one."""

    def get_tag(self) -> tuple[str, str, str]:
        _, abi, system = super().get_tag()
        return ("py3", "none", system) if HAS_NATIVE_PART else ("py3", abi, system)


class PlatformDistribution(Distribution):
    """Belongs where compiled packages go."""

    def has_ext_modules(self) -> bool:
        return HAS_NATIVE_PART


setup(
    distclass=PlatformDistribution,
    cmdclass={"build_py": BuildWithNative, "bdist_wheel": PlatformWheel},
)
