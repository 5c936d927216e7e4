#!/usr/bin/env python3
"""Text from a GPT that `bitloom export RUN --to onnx` wrote, by onnxruntime, with the cache of keys and values.

onnx_text.py FILE.onnx PROMPT [TOKENS]: the prompt and the likeliest text after it, as `bitloom sample RUN --temperature 0` writes it, up
to the net's context. Needs onnxruntime, tokenizers and numpy.
"""
import sys

import numpy as np
import onnxruntime
import tokenizers


class Gpt:
    """`metadata`: texts by key, of which "context" and "end_of_text" are numbers and "tokenizer.json" is missing where that cannot say
    the tokenizer: then `bitloom export RUN --out FOLDER` writes its tokenizer.model."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        self.cache_inputs = {each.name: each.shape for each in self.session.get_inputs() if each.name != "input_ids"}

    def tokenizer(self):
        if "tokenizer.json" not in self.metadata:
            sys.exit("the file has no tokenizer.json among its metadata; expected one: `bitloom export RUN --out FOLDER` has the tokenizer.model")
        return tokenizers.Tokenizer.from_str(self.metadata["tokenizer.json"])

    def empty_cache(self, batch):
        """Of each layer keys and values (batch, heads, 0, width of a head), under the names that they have as inputs."""
        return {name: np.zeros((batch, heads, 0, width), np.float32) for name, (_, heads, _, width) in self.cache_inputs.items()}

    def __call__(self, ids, cache):
        """ids (batch, tokens), after those of the cache; gives logits (batch, tokens, vocabulary) and the next cache."""
        logits, *present = self.session.run(None, {"input_ids": np.asarray(ids, np.int64), **cache})
        return logits, dict(zip(self.cache_inputs, present, strict=True))

    def likeliest(self, tokens, count):
        """Up to `count` tokens after `tokens`, without the end of text."""
        context, end = int(self.metadata["context"]), int(self.metadata["end_of_text"])
        found, new, cache = [], list(tokens), self.empty_cache(1)
        while len(found) < count and len(tokens) + len(found) <= context:
            logits, cache = self([new], cache)
            new = [int(logits[0, -1].argmax())]
            if new == [end]:
                break
            found += new
        return found


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    count = sys.argv[3] if len(sys.argv) == 4 else "256"
    if not count.isdecimal():
        sys.exit(f"TOKENS: '{count}'; expected a whole number")
    net = Gpt(sys.argv[1])
    tokenizer = net.tokenizer()
    tokens = tokenizer.encode(sys.argv[2]).ids
    context = int(net.metadata["context"])
    if not 0 < len(tokens) < context:
        sys.exit(f"the prompt: {len(tokens)} tokens; expected 1 to {context - 1}")
    print(tokenizer.decode(tokens + net.likeliest(tokens, int(count))))


if __name__ == "__main__":
    main()
