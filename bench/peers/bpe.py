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
    """Parts of at least `size` characters, cut where a line ends after something visible: no word is cut."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + max(size, 1))
        while end > 0 and text[end - 1].isspace():
            end = text.find("\n", end + 1)
        end = len(text) if end < 0 else end
        yield text[begin:end]
        begin = end


def train(text, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def ways(tokenizer, text):
    """The calls that give the whole text's tokens: all at once, or parts of so many characters, together or one by one."""
    calls = {"encode": lambda: [tokenizer.encode(text)]}
    for size in (0, 1000, 3000, 10000, 30000, 100000, 1 << 30):
        parts = list(pieces(text, size))
        calls[f"encode_batch {size}"] = lambda parts=parts: tokenizer.encode_batch(parts)
        calls[f"encode_batch_fast {size}"] = lambda parts=parts: tokenizer.encode_batch_fast(parts)
        calls[f"encode {size}"] = lambda parts=parts: [tokenizer.encode(part) for part in parts]
    return calls


def fastest_way(tokenizer, sample):
    """Of the best of three rounds each, so that a busy moment of the machine decides nothing."""
    calls = ways(tokenizer, sample)
    rounds = [{name: timed(call)[0] for name, call in calls.items()} for _ in range(3)]
    return min(calls, key=lambda name: min(times[name] for times in rounds))


def main():
    text = open(sys.argv[1], encoding="utf-8", newline="").read()
    tokenizer = Tokenizer.from_file(sys.argv[2])
    best = fastest_way(tokenizer, text[:1 << 20])
    encode = ways(tokenizer, text)[best]
    encode()
    for line in sys.stdin:
        words = line.split()
        if words[0] == "train":
            seconds, result = timed(lambda: train(text, int(words[1])))
            print(f'{{"seconds": {seconds}, "merges": {result.get_vocab_size() - 256}}}', flush=True)
        else:
            seconds, result = timed(encode)
            tokens = [token for part in result for token in part.ids]
            total = sum((i + 1) * token for i, token in enumerate(tokens)) % 2**32
            print(f'{{"seconds": {seconds}, "tokens": {len(tokens)}, "sum": {total}, "way": "{best}"}}', flush=True)


if __name__ == "__main__":
    main()
