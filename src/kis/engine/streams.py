"""The pipes of one command: made here, read and written here without ever blocking.

Knows: pipes and their ends. Must not know: what the bytes mean, or how they are waited for.
Called by: sandbox.
"""

from __future__ import annotations

import errno
import os
import select

from kis.engine.life import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Take = Callable[[int, bytes], None]

CHUNK_BYTES = 65_536
# What a pipe can hold at most (fs.pipe-max-size), in bytes and in packets (a page for each): the
# last look at one ends after as much, so that a child left behind, writing for ever, cannot keep
# us; nor can it by packets of a byte (pipe(2), O_DIRECT), each of which costs us a read.
_PIPE_BYTES = 1 << 20
_PIPE_PACKETS = _PIPE_BYTES // 4096


class Streams:
    """Standard input, output and error, and the gate that the command waits at.

    ``owner`` is the host uid and gid that a payload started by root has, so that it can open
    ``/dev/stdout`` again; ``source`` a descriptor to forward.
    """

    def __init__(
        self,
        *,
        merged: bool,
        stdin: bytes | None,
        source: int | None,
        owner: tuple[int, int] | None,
    ) -> None:
        self._open: list[int] = []
        self._outputs: dict[int, int] = {}
        self._pending = memoryview(stdin or b"")
        self._source = source
        self._stdin = self._gate = -1
        try:
            self._make(merged, owner)
        except BaseException:
            self.close()
            raise

    def _make(self, merged: bool, owner: tuple[int, int] | None) -> None:
        theirs_in, self._stdin = self._pipe()
        ours_out, theirs_out = self._pipe()
        self._outputs[ours_out] = STDOUT
        theirs_err = theirs_out
        if not merged:
            ours_err, theirs_err = self._pipe()
            self._outputs[ours_err] = STDERR
        streams = (theirs_in, theirs_out, theirs_err)
        gate, self._gate = self._pipe()
        self.theirs = (*streams, gate)
        self.inodes = tuple(os.fstat(end).st_ino for end in streams)
        for ours in (self._stdin, *self._outputs):
            os.set_blocking(ours, False)
        if owner is not None:
            for end in dict.fromkeys(streams):
                os.fchown(end, *owner)
        if not self._pending and self._source is None:
            self._close_stdin()

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe2(os.O_CLOEXEC)
        self._open.extend(ends)
        return ends

    def sent(self) -> None:
        """Let go of the ends that the command now has."""
        for end in dict.fromkeys(self.theirs):
            self._close(end)

    def open_gate(self) -> None:
        """Let the waiting command execute. Were the gate closed instead, it would end."""
        try:
            os.write(self._gate, b"\0")
        except BrokenPipeError:
            pass  # it is gone already, and the frames will tell
        self._close(self._gate)

    def wanted(self) -> dict[int, int]:
        """Return what to wait for: descriptors and poll(2) events."""
        wanted = dict.fromkeys(self._outputs, select.POLLIN)
        if self._stdin >= 0:
            # Without pending input the end is watched for its reader going away.
            wanted[self._stdin] = select.POLLOUT if self._pending else 0
            if self._source is not None and not self._pending:
                wanted[self._source] = select.POLLIN
        return wanted

    def handle(self, descriptor: int, take: Take) -> None:
        """Do what a descriptor is ready for; bytes of the command go to ``take``."""
        if descriptor in self._outputs:
            self._read(descriptor, take)
        elif descriptor == self._stdin:
            if self._pending:
                self._write()
            else:  # nothing was to be written, so its reader is gone
                self._close_stdin()
        elif descriptor == self._source and self._stdin >= 0 and not self._pending:
            self._forward()

    def drain(self, take: Take) -> None:
        """Take what the pipes hold now, and close our ends. Nobody is waited for."""
        self._close_stdin()
        self._close(self._gate)  # still open where the command ended as it waited
        for descriptor in list(self._outputs):
            left = _PIPE_BYTES
            for _ in range(_PIPE_PACKETS):
                count = self._read(descriptor, take)
                left -= count
                if count == 0 or left <= 0:
                    break
            if self._outputs.pop(descriptor, None) is not None:
                self._close(descriptor)

    def _read(self, descriptor: int, take: Take) -> int:
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if data:
            take(self._outputs[descriptor], data)
        else:
            del self._outputs[descriptor]
            self._close(descriptor)
        return len(data)

    def _write(self) -> None:
        """A command that does not read, or is gone, is no error: it may not want its input."""
        try:
            self._pending = self._pending[os.write(self._stdin, self._pending) :]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            self._close_stdin()
            return
        if not self._pending and self._source is None:
            self._close_stdin()

    def _forward(self) -> None:
        try:
            data = os.read(self._source, CHUNK_BYTES) if self._source is not None else b""
        except BlockingIOError:
            return
        except OSError:  # a terminal that hung up, a reset connection: the input is over
            data = b""
        self._pending = memoryview(data)
        if data:
            self._write()
        else:
            self._source = None
            self._close_stdin()

    def _close_stdin(self) -> None:
        self._pending = memoryview(b"")
        if self._stdin >= 0:
            self._close(self._stdin)
            self._stdin = -1

    def _close(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._open.remove(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        """Close every end that is still ours."""
        self._outputs.clear()
        self._stdin = self._gate = -1
        while self._open:
            os.close(self._open.pop())
