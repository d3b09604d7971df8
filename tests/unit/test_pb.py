"""The generated messages live beside another client's that has the same names."""

from __future__ import annotations

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from liftenvelope._pb import api_pb2


def test_other_clients_can_register_the_same_file() -> None:
    file = FileDescriptorProto(name="api.proto", package="proto", syntax="proto3")
    file.message_type.add(name="Message")
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    theirs = descriptor_pool.Default().FindMessageTypeByName("proto.Message")
    assert theirs is not api_pb2.Message.DESCRIPTOR
    assert not theirs.fields


def test_messages_and_enums() -> None:
    message = api_pb2.Message(offset=-1, value=b"hello", headers={"a": b"b"}, ackPolicy=api_pb2.ALL)
    assert api_pb2.Message.FromString(message.SerializeToString()) == message
    assert api_pb2.AckPolicy.Name(message.ackPolicy) == "ALL"
    assert api_pb2.Ack.TOO_LARGE == 3
    assert api_pb2.SubscribeRequest(reverse=True).SerializeToString() == b"\x60\x01"


def test_size_of_the_api() -> None:
    assert len(api_pb2.DESCRIPTOR.services_by_name["API"].methods) == 16
    assert len(api_pb2.DESCRIPTOR.message_types_by_name) == 50
