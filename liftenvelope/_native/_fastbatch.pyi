# Types of src/_fastbatch.pyx, checked by stubtest. Documentation: batch.py.

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from typing_extensions import Buffer

@final
class Column:
    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @staticmethod
    def same(item: bytes, length: int) -> Column: ...
    @staticmethod
    def of_sequence(rows: Iterable[Any], name: str, text: bool) -> Column: ...
    @staticmethod
    def of_binary(
        length: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        data: Buffer | None,
        large: bool,
    ) -> Column: ...
    @staticmethod
    def of_views(
        length: int, first: int, validity: Buffer | None, views: Buffer | None, data: Sequence[Buffer]
    ) -> Column: ...
    def row(self, i: int) -> bytes | None: ...

@final
class HeaderColumn:
    @property
    def length(self) -> int: ...
    @staticmethod
    def of_sequence(rows: Iterable[Mapping[str, Any] | None]) -> HeaderColumn: ...
    @staticmethod
    def of_map(
        length: int,
        first: int,
        validity: Buffer | None,
        offsets: Buffer | None,
        names: Column,
        values: Column,
    ) -> HeaderColumn: ...

@final
class Envelopes:
    @property
    def length(self) -> int: ...
    def __new__(
        cls,
        values: Column,
        keys: Column | None,
        headers: HeaderColumn | None,
        ack_inboxes: Column | None,
        correlation_ids: Column | None,
        ack_policy: int,
        expected_offset: int | Buffer,
        crc: bool,
    ) -> Envelopes: ...
    def oversize(self, limit: int) -> tuple[int, int] | None: ...
    def first_null(self) -> int | None: ...
    def reach(self, start: int, limit: int) -> tuple[int, int]: ...
    def size_of(self, start: int, stop: int) -> int: ...
    def write(self, start: int, stop: int, offsets: Buffer, data: Buffer, validity: Buffer) -> int: ...
    def frames(self, start: int, stop: int, subjects: list[bytes], which: Buffer | None) -> bytes: ...

@final
class Requests:
    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __new__(
        cls,
        stream: bytes,
        values: Column,
        keys: Column | None,
        headers: HeaderColumn | None,
        partitions: Buffer,
        ack_policy: int,
        ident: bytes,
        expected: Buffer | None = None,
    ) -> Requests: ...
    def frames(self, start: int, stop: int, number: int, limit: int, longest: int) -> tuple[int, bytes]: ...

@final
class MessageColumns:
    @property
    def bad(self) -> list[int]: ...
    def __new__(
        cls,
        rows: Column,
        large: bool,
        raw: bool,
        allocate: Callable[[int], Any],
        views: bool = False,
        fields: tuple[str, ...] = ...,
    ) -> MessageColumns: ...
    def columns(self) -> dict[str, Any]: ...

@final
class AckColumns:
    @property
    def bad(self) -> list[int]: ...
    def __new__(cls, rows: Column, large: bool, allocate: Callable[[int], Any]) -> AckColumns: ...
    def columns(self) -> dict[str, Any]: ...

@final
class StoredColumns:
    @property
    def bad(self) -> int: ...
    def __new__(cls, rows: Column, allocate: Callable[[int], Any]) -> StoredColumns: ...
    def columns(self) -> dict[str, Any]: ...
