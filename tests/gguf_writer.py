"""Write the header of a GGUF file, value by value, with nothing behind it but small tensors."""

from __future__ import annotations

import struct


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(item):
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + text(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(text, item))
        case [*_]:
            return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)
    raise TypeError(item)


def gguf(metadata, tensors=(), *, version=3, magic=b"GGUF", counts=None):
    """The bytes of a file: a header, the table of float32 vectors, the vectors."""
    tensors = dict(tensors)
    counts = counts or (len(tensors), len(metadata))
    head = magic + struct.pack("<IQQ", version, *counts)
    for key, item in metadata.items():
        head += text(key) + value(item)
    data = b""
    for name, values in tensors.items():
        head += text(name) + struct.pack("<IQIQ", 1, len(values), 0, len(data))
        data += struct.pack(f"<{len(values)}f", *values)
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


LLAMA = {
    "general.architecture": "llama",
    "llama.context_length": 8192,
    "llama.embedding_length": 576,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.rope.dimension_count": 64,
    "llama.rope.freq_base": 100000.0,
    "tokenizer.ggml.tokens": [f"token{i}" for i in range(5000)],
    "tokenizer.ggml.token_type": list(range(5000)),
    "tokenizer.ggml.add_bos_token": False,
}
