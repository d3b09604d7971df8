# Types of src/_fastdirect.pyx, checked by stubtest. Documentation: direct.py.

from typing import final

from typing_extensions import Buffer

@final
class DirectFrames:
    foreign: bool
    def __new__(cls, stream: bytes) -> DirectFrames: ...
    @property
    def delivery(self) -> int: ...
    def follow(self, sid: int) -> None: ...
    def take(self, view: Buffer, start: int, end: int) -> tuple[bytes, int]: ...
