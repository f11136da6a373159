"""The command as a user types it, on a small random model with a byte-level tokenizer."""

import io
import json
import re
import shutil

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from oarlock import checkpoint
from oarlock.cli.main import main
from oarlock.train import load_config, train
from tiny_run import write_config

SIZE = {
    "vocab_size": 272,  # 256 bytes, one end token, padding
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "bos_token_id": 256,
    "eos_token_id": 256,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder inside a run directory."""
    folder = tmp_path_factory.mktemp("run") / "hf"
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE)).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def copy(folder, tmp_path):
    """A copy that a test may break."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def _run(*arguments):
    return main(["generate", *map(str, arguments), "--device", "cpu"])


def test_text_on_stdout_statistics_on_stderr(folder, capsys):
    assert _run(folder, "Zürich ", "--max-new-tokens", 20, "--seed", 1) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Zürich ")
    assert captured.out.endswith("\n")
    assert "prefill 8 tokens" in captured.err
    assert "tok/s" in captured.err


def test_run_directory_streaming_and_seed_change_nothing(folder, capsys):
    texts = set()
    for directory in (folder, folder.parent):
        for stream in ([], ["--no-stream"]):
            assert _run(directory, "ab", "--max-new-tokens", 30, "--seed", 5, *stream) == 0
            texts.add(capsys.readouterr().out)
    assert len(texts) == 1


def test_first_text_streams(folder, monkeypatch):
    written = []
    monkeypatch.setattr("oarlock.cli.generate._write", written.append)
    assert _run(folder, "ab", "cd", "--max-new-tokens", 20, "--seed", 1) == 0
    streamed = sum(text != "" for text in written)
    assert streamed > 5
    written.clear()
    assert _run(folder, "ab", "cd", "--max-new-tokens", 20, "--seed", 1, "--no-stream") == 0
    assert len(written) == 2


def test_interrupt_keeps_what_was_written(folder, capsys, monkeypatch):
    def interrupt(stream, token):
        raise KeyboardInterrupt

    monkeypatch.setattr("oarlock.cli.generate.TextStream.push", interrupt)
    assert _run(folder, "ab") == 130
    captured = capsys.readouterr()
    assert captured.out == "ab\n"
    assert "prefill" in captured.err


def test_samples_equal_single_runs_with_their_seeds(folder, capsys):
    options = ["--max-new-tokens", 12, "--top-k", 40, "--top-p", "0.9", "--temperature", "0.8"]
    assert _run(folder, "ab", "a longer prompt", "--num-samples", 2, "--seed", 3, *options) == 0
    together = capsys.readouterr().out
    expected = ""
    for row, (prompt, seed) in enumerate([("ab", 3), ("ab", 4), ("a longer prompt", 3), ("a longer prompt", 4)]):
        assert _run(folder, prompt, "--seed", seed, *options) == 0
        expected += f"--- {row + 1}/4 ---\n" + capsys.readouterr().out
    assert together == expected


def test_greedy_equals_transformers(folder, capsys):
    assert _run(folder, "ab", "--greedy", "--max-new-tokens", 10) == 0
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode("ab").ids])
    model = transformers.LlamaForCausalLM.from_pretrained(folder)
    # Ids beyond the tokenizer's are padding of the vocabulary, which the command never draws.
    barred = list(range(257, 272))
    whole = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=10,
        do_sample=False,
        suppress_tokens=barred,
        pad_token_id=0,
    )
    assert capsys.readouterr().out == tokenizer.decode(whole[0].tolist()) + "\n"


def test_prompts_from_stdin_and_files(folder, tmp_path, capsys, monkeypatch):
    file = tmp_path / "prompts.txt"
    file.write_text("first\n\nsecond\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("third\nline"))
    assert _run(folder, "-", "--prompts", file, "--max-new-tokens", 1, "--greedy") == 0
    out = capsys.readouterr().out
    for row, prompt in enumerate(["third\nline", "first", "second"]):
        assert f"--- {row + 1}/3 ---\n{prompt}" in out


def test_no_prompt_begins_a_document(folder, capsys):
    assert _run(folder, "--max-new-tokens", 5) == 0
    assert "prefill 1 tokens" in capsys.readouterr().err


def test_end_token_may_be_named_by_the_tokenizer_only(copy, capsys):
    """As in the export of a run: config.json has no ids, tokenizer_config.json has the tokens."""
    _edit(copy / "config.json", bos_token_id=None, eos_token_id=None)
    (copy / "generation_config.json").unlink(missing_ok=True)
    assert _run(copy, "--max-new-tokens", 5) == 2  # nothing begins a document
    _one_line(capsys, "prompt 0 is empty")
    (copy / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|end|>"}}))
    assert _run(copy, "--max-new-tokens", 5) == 0


def test_unfinished_run_uses_its_newest_checkpoint(tmp_path, capsys):
    config = write_config(tmp_path)
    run = config.with_suffix("")
    train(load_config(config, ["--train.steps", "2"]))
    capsys.readouterr()
    options = ("the oar", "--max-new-tokens", 8, "--temperature", "0.9")
    assert _run(run, *options) == 0
    exported = capsys.readouterr().out
    (run / "hf").rename(run / "elsewhere")
    shutil.rmtree(tmp_path / "corpus")  # whatever has become of the text: the run knows its tokenizer
    assert _run(run, *options) == 0
    captured = capsys.readouterr()
    assert captured.out == exported
    assert "is not finished: using its checkpoint of step 2" in captured.err


def test_a_checkpoint_that_the_run_replaces_meanwhile_is_not_missed(tmp_path, capsys, monkeypatch):
    config = write_config(tmp_path)
    run = config.with_suffix("")
    train(load_config(config, ["--train.steps", "2"]))
    shutil.rmtree(run / "hf")
    load, loaded = checkpoint.load_checkpoint, []

    def load_first_too_late(path, **options):
        loaded.append(path.name)
        if len(loaded) == 1:
            train(load_config(config, ["--train.steps", "3", "--checkpoint.keep_last", "1"]), resume="auto")
            shutil.rmtree(run / "hf")
        return load(path, **options)

    monkeypatch.setattr(checkpoint, "load_checkpoint", load_first_too_late)
    assert _run(run, "the oar", "--max-new-tokens", 2) == 0
    assert "using its checkpoint of step 3" in capsys.readouterr().err


def test_end_of_the_context_is_announced(folder, capsys):
    assert _run(folder, "x" * 90, "--max-new-tokens", 50) == 0
    assert "leaves room for 6 of 50 new tokens" in capsys.readouterr().err


def _edit(file, **changes):
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps(content))


def _without_weights(copy):
    (copy / "model.safetensors").unlink()


def _pickled_weights(copy):
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")


def _without_tokenizer(copy):
    (copy / "tokenizer.json").unlink()


def _broken_tokenizer(copy):
    (copy / "tokenizer.json").write_text("{")


def _small_vocabulary(copy):
    _edit(copy / "config.json", vocab_size=200)


def _without_config(copy):
    (copy / "config.json").unlink()


def _run_without_checkpoint(copy):
    (copy / "config.json").unlink()
    (copy / "config.toml").write_text("")


def _broken_config(copy):
    (copy / "config.json").write_text("{")


@pytest.mark.parametrize(
    ("breakage", "message"),
    [
        (_without_weights, "neither model.safetensors nor"),
        (_pickled_weights, "pytorch_model.bin would have to be unpickled, which Oarlock never does"),
        (_without_tokenizer, "tokenizer.json is missing: copy"),
        (_broken_tokenizer, "tokenizer.json is not a tokenizer"),
        (_small_vocabulary, "vocabulary mismatch: .*tokenizer.json has 257 tokens, the model's vocab_size is 200"),
        (_without_config, "neither a run directory nor a Hugging Face folder"),
        (_run_without_checkpoint, "neither an exported model .* nor a checkpoint: train it first"),
        (_broken_config, "config.json is not valid JSON"),
    ],
)
def test_broken_folders_end_in_one_line(copy, capsys, breakage, message):
    breakage(copy)
    assert _run(copy, "ab") == 2
    _one_line(capsys, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "-1"], "temperature must be"),
        (["--num-samples", 0], "--num-samples must be at least 1"),
        (["--threads", 0], "--threads must lie in"),
        (["--threads", 100_000], "--threads must lie in"),  # OpenMP crashes where it cannot start them
        (["--seed", 2**70], "--seed must fit 64 bits"),
        (["a\udcffb"], "prompt 'a.*b' is not UTF-8"),
        (["--prompts", "absent.txt"], "absent.txt"),
    ],
)
def test_wrong_options_end_in_one_line(folder, capsys, options, message):
    assert _run(folder, "ab", *options) == 2
    _one_line(capsys, message)


def test_prompts_may_follow_the_options(folder, capsys):
    options = ["--greedy", "--no-stream", "--device", "cpu"]
    outputs = []
    for words in (["ab", *options], [*options, "ab"], [*options, "--", "ab"]):
        assert main(["generate", str(folder), *words]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0].startswith("ab")
    assert len(set(outputs)) == 1
    assert main(["generate", str(folder), *options, "--", "-x", "--y"]) == 0
    assert "--- 2/2 ---\n--y" in capsys.readouterr().out


@pytest.mark.parametrize(("device", "message"), [("abacus", "no device of torch"), ("cuda:99", "CUDA devices here")])
def test_a_device_that_is_not_here(folder, capsys, device, message):
    assert main(["generate", str(folder), "ab", "--device", device]) == 2
    _one_line(capsys, f"--device = '{device}': .*{message}")


def test_text_that_is_no_utf8_is_named(folder, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_bytes(b"ab\xffcd")
    assert _run(folder, "--prompts", tmp_path / "prompts.txt") == 2
    _one_line(capsys, r"prompts.txt: byte 2 is no UTF-8")


def test_missing_directory(tmp_path, capsys):
    assert _run(tmp_path / "absent", "ab") == 2
    _one_line(capsys, "absent: no such directory")
    (tmp_path / "model.bin").touch()
    assert _run(tmp_path / "model.bin", "ab") == 2
    _one_line(capsys, "model.bin: is a file, not a run directory")


def test_prompt_longer_than_the_context(folder, capsys):
    assert _run(folder, "x" * 96) == 2
    _one_line(capsys, "prompt 0 has 96 tokens.*shorten")


def _one_line(capsys, message):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert re.search(message, captured.err)
