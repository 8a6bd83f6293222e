"""Byte-level BPE: learns merges from a text and writes them as a Hugging Face `tokenizer.json`.

The pieces are GPT-2's (words with the space before them), restricted to ASCII letters and digits: the corpus has no others.
"""

import collections
import json
import re

PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")


def byte_letters():
    """GPT-2's printable letter for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return letters


LETTERS = byte_letters()


class Bpe:
    def __init__(self, merges, special):
        self.merges, self.special = merges, special
        alphabet = [LETTERS[byte] for byte in range(256)]
        tokens = [*special, *alphabet, *(a + b for a, b in merges)]
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.rank = {pair: index for index, pair in enumerate(merges)}
        self.known = {}

    @staticmethod
    def learn(text, size, special):
        """Merges the most frequent pair until there are `size` tokens, or no pair comes twice."""
        words = collections.Counter(PIECES.findall(text))
        split = {word: [LETTERS[byte] for byte in word.encode()] for word in words}
        merges = []
        while 256 + len(special) + len(merges) < size:
            pairs = collections.Counter()
            for word, count in words.items():
                for pair in zip(split[word], split[word][1:]):
                    pairs[pair] += count
            best, count = max(pairs.items(), key=lambda item: (item[1], item[0]), default=(None, 0))
            if count < 2:
                break
            merges.append(best)
            split = {word: merge(parts, best) for word, parts in split.items()}
        return Bpe(merges, special)

    @staticmethod
    def load(file):
        """What `save` wrote."""
        with open(file, encoding="utf-8") as given:
            whole = json.load(given)
        return Bpe([tuple(pair) for pair in whole["model"]["merges"]], [token["content"] for token in whole["added_tokens"]])

    def encode(self, text):
        return [token for piece in PIECES.findall(text) for token in self.piece(piece)]

    def piece(self, piece):
        if piece not in self.known:
            parts = [LETTERS[byte] for byte in piece.encode()]
            while True:
                pairs = [pair for pair in zip(parts, parts[1:]) if pair in self.rank]
                if not pairs:
                    break
                parts = merge(parts, min(pairs, key=self.rank.get))
            self.known[piece] = [self.ids[part] for part in parts]
        return self.known[piece]

    def save(self, file):
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        special = [{"id": self.ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False, "special": True} for token in self.special]
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                 "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                 "vocab": self.ids, "merges": [list(pair) for pair in self.merges]}
        whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
                 "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level, "model": model}
        with open(file, "w", encoding="utf-8") as out:
            json.dump(whole, out, ensure_ascii=False, indent=0)
            out.write("\n")


def merge(parts, pair):
    merged, index = [], 0
    while index < len(parts):
        if tuple(parts[index:index + 2]) == pair:
            merged.append(parts[index] + parts[index + 1])
            index += 2
        else:
            merged.append(parts[index])
            index += 1
    return merged
