"""The tokenizers package for bench_tokenizer.py: arguments TEXT TOKENIZER, then lines as bench/tokenize.cc answers them.

Encoding takes the fastest of the ways to call it on one core, found at the start, without turning the ids into Python numbers. The time
is the process's own processor time; before the first answer it has encoded the text, so its cache is warm.
"""
import os
import sys
import time

os.environ.update(TOKENIZERS_PARALLELISM="false", RAYON_NUM_THREADS="1")
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402


def timed(function):
    begin = time.process_time()
    result = function()
    return time.process_time() - begin, result


def pieces(text, size):
    """Cut after a newline: whole lines, about `size` characters each."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", min(begin + size, len(text)))
        end = len(text) if end < 0 else end + 1
        yield text[begin:end]
        begin = end


def train(text, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def main():
    text = open(sys.argv[1], encoding="utf-8", newline="").read()
    tokenizer = Tokenizer.from_file(sys.argv[2])
    ways = {"encode": lambda: [tokenizer.encode(text)]}
    for size in (0, 1000, 100000, len(text)):
        parts = list(pieces(text, size))
        ways[f"encode_batch {size}"] = lambda parts=parts: tokenizer.encode_batch(parts)
        ways[f"encode_batch_fast {size}"] = lambda parts=parts: tokenizer.encode_batch_fast(parts)
    best = min(ways, key=lambda way: timed(ways[way])[0])
    for line in sys.stdin:
        words = line.split()
        if words[0] == "train":
            seconds, result = timed(lambda: train(text, int(words[1])))
            print(f'{{"seconds": {seconds}, "merges": {result.get_vocab_size() - 256}}}', flush=True)
        else:
            seconds, result = timed(ways[best])
            print(f'{{"seconds": {seconds}, "tokens": {sum(len(part.ids) for part in result)}, "way": "{best}"}}', flush=True)


if __name__ == "__main__":
    main()
