"""Where ``--receipt`` goes.

Knows: how a file is replaced as a whole, and that a bad path must fail before a run.
Must not know: what a receipt says. Called by: cli run.
"""

from __future__ import annotations

import os
import stat

from kis.cli import render
from kis.errors import Code, SandboxError, os_reason, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kis.receipt import Receipt

TABLE = b"-"


class ReceiptFile:
    """A place that was found writable; ``write`` fills it once.

    A regular file is replaced as a whole (mode 0600); a pipe or terminal was opened before the
    run. No temporary file exists while the command runs, so that none can be left behind. The
    directory is opened before the run and held: it may be mounted for the payload to write to,
    which then can lead the path anywhere, but not the descriptor.
    """

    def __init__(self, path: bytes) -> None:
        self._path = path
        self._name = b""
        self._directory = self._stream = -1

    def check(self) -> None:
        """Raise ``config_invalid`` where the file cannot be written, without touching it."""
        try:
            mode = os.stat(self._path or b".").st_mode
        except FileNotFoundError:
            mode = stat.S_IFREG
        except (OSError, ValueError) as error:
            raise self._invalid(error) from error
        if stat.S_ISDIR(mode):
            raise SandboxError(
                Code.CONFIG_INVALID,
                f"--receipt: {quoted(self._path)} is a directory",
                details={"field": "--receipt"},
            )
        try:
            if not stat.S_ISREG(mode):
                self._stream = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
                return
            # Through a link once, so that the file is replaced and not the link.
            directory, self._name = os.path.split(os.path.realpath(self._path))
            self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            probe, name = self._temporary()
            os.close(probe)
            os.unlink(name, dir_fd=self._directory)
        except OSError as error:
            raise self._invalid(error) from error

    def write(self, receipt: Receipt) -> None:
        """Write the receipt as JSON. Raises ``SandboxError`` where the place has gone bad."""
        content = render.json_text(receipt.to_dict()).encode("ascii")
        if self._stream >= 0:
            render.write_bytes(self._stream, content)
            os.close(self._stream)
            return
        try:
            descriptor, name = self._temporary()
        except OSError as error:
            raise self._invalid(error) from error
        try:
            render.write_bytes(descriptor, content)
            held = self._directory
            os.rename(name, self._name, src_dir_fd=held, dst_dir_fd=held)
        except OSError as error:
            os.unlink(name, dir_fd=self._directory)
            raise self._invalid(error) from error
        except SandboxError:
            os.unlink(name, dir_fd=self._directory)
            raise
        finally:
            os.close(descriptor)
            os.close(self._directory)

    def _temporary(self) -> tuple[int, bytes]:
        name = b".kis-receipt-" + os.urandom(8).hex().encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, 0o600, dir_fd=self._directory), name

    def _invalid(self, error: OSError | ValueError) -> SandboxError:
        reason = os_reason(error) if isinstance(error, OSError) else "a NUL in the path"
        return SandboxError(
            Code.CONFIG_INVALID,
            f"--receipt: {quoted(self._path)} cannot be written: {reason}",
            details={"field": "--receipt"},
        )


class ReceiptTable:
    """``--receipt -``: a short table on standard error, after the run."""

    def write(self, receipt: Receipt) -> None:
        """Print the table."""
        render.write_text(render.STANDARD_ERROR, render.receipt_table(receipt))


def open_receipt_file(path: bytes | None) -> ReceiptFile | ReceiptTable | None:
    """Return where the receipt goes, checked. Raises ``config_invalid``."""
    if path is None:
        return None
    if path == TABLE:
        return ReceiptTable()
    file = ReceiptFile(path)
    file.check()
    return file
