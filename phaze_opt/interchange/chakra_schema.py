"""The messages of Chakra's execution traces, made from a description of their schema.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra (version 1.0.0, Apache 2.0), which no
package distributes. Described here are its core messages with the numbers of all of their fields
that a trace of ours has; readers skip what is absent. The framing of a file is that of
``src/third_party/utils/protolib.py`` there: before each message its length as a varint.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

SCHEMA_VERSION = "1.0.0"

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes (``NodeType``)."""

COLLECTIVE_TYPES = {"all_reduce": 0, "all_gather": 2, "all_to_all": 6, "reduce_scatter": 7}
"""``CollectiveCommType`` by our names."""

_PACKAGE = "ChakraProtoMsg"
_NODE_TYPES = {
    "INVALID_NODE": 0,
    "METADATA_NODE": 1,
    "MEM_LOAD_NODE": 2,
    "MEM_STORE_NODE": 3,
    "COMP_NODE": COMPUTE,
    "COMM_SEND_NODE": SEND,
    "COMM_RECV_NODE": RECEIVE,
    "COMM_COLL_NODE": COLLECTIVE,
}
_ATTRIBUTE = "AttributeProto"
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    _ATTRIBUTE: (
        ("name", 1, "string"),
        ("doc_string", 2, "string"),
        ("double_val", 3, "double"),
        ("int32_val", 7, "int32"),
        ("int64_val", 9, "int64"),
        ("uint64_val", 13, "uint64"),
        ("bool_val", 27, "bool"),
        ("string_val", 29, "string"),
    ),
    "IOInfo": (("values", 1, "string"), ("shapes", 2, "string"), ("types", 3, "string")),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, f"*{_ATTRIBUTE}")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "NodeType"),
        ("ctrl_deps", 4, "*uint64"),
        ("data_deps", 5, "*uint64"),
        ("start_time_micros", 6, "uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("outputs", 9, "IOInfo"),
        ("attr", 10, f"*{_ATTRIBUTE}"),
    ),
}
"""Fields by message: name, number, and type; ``*`` where it is repeated."""


class ChakraMessages(NamedTuple):
    """Classes of messages.

    Attributes
    ----------
    attribute, metadata, node
        ``AttributeProto``, ``GlobalMetadata`` and ``Node``.
    """

    attribute: Any
    metadata: Any
    node: Any


@lru_cache(maxsize=1)
def chakra_messages() -> ChakraMessages:
    """Make the classes; protobuf is loaded only now."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE)
    file.syntax = "proto3"
    node_type = file.enum_type.add(name="NodeType")
    for name, number in _NODE_TYPES.items():
        node_type.value.add(name=name, number=number)
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, number, of_type in fields:
            plain = of_type.removeprefix("*")
            field = described.field.add(name=name, number=number)
            field.label = kinds.LABEL_OPTIONAL if plain == of_type else kinds.LABEL_REPEATED
            if plain in _MESSAGES or plain == "NodeType":
                field.type = kinds.TYPE_ENUM if plain == "NodeType" else kinds.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{plain}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{plain.upper()}")
        if message == _ATTRIBUTE:
            described.oneof_decl.add(name="value")
            for field in described.field[2:]:
                field.oneof_index = 0
    # A pool of its own: a program that loads Chakra's own messages as well may have both.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return ChakraMessages(
        *(
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            for name in (_ATTRIBUTE, "GlobalMetadata", "Node")
        )
    )


def framed(data: bytes) -> bytes:
    """Return a message with its length before it."""
    length, rest = bytearray(), len(data)
    while rest > 0x7F:
        length.append(0x80 | rest & 0x7F)
        rest >>= 7
    length.append(rest)
    return bytes(length) + data
