"""Oracles: the model without a cache, each prompt on its own, and transformers' generate."""

from pathlib import Path

import pytest
import torch
import transformers

from oarlock import models
from oarlock.generate import KeyValueCache, generate
from oarlock.generate.loop import Batch
from oarlock.models import Decoder

_SIZE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,  # spreads the logits, so that greedy tokens do not hang on rounding
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}
_LATENT = {"kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}

FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**_SIZE),
    "qwen2": lambda: transformers.Qwen2Config(**_SIZE),
    "qwen2-window": lambda: transformers.Qwen2Config(**_SIZE, **_WINDOW),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZE),
    "qwen3-window": lambda: transformers.Qwen3Config(**_SIZE, **_WINDOW),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**_SIZE, **_EXPERTS, num_experts=4),
    "ernie4_5": lambda: transformers.Ernie4_5Config(**_SIZE),
    "ernie4_5_moe": lambda: transformers.Ernie4_5_MoeConfig(
        **_SIZE, moe_k=2, moe_num_experts=4, moe_intermediate_size=24, moe_num_shared_experts=1, moe_layer_start_index=1
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **(_SIZE | _EXPERTS | _LATENT | {"num_key_value_heads": 4, "head_dim": 4}),
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=2,
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **_SIZE, num_local_experts=4, num_experts_per_tok=2, sliding_window=6, rope_parameters=_YARN
    ),
}


def reference(family: str) -> transformers.PreTrainedModel:
    """The transformers model of a family, float32, in eval mode, with the same weights on every call."""
    torch.manual_seed(5)
    return transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), attn_implementation="eager").eval()


def ours(family: str, folder: Path, device: torch.device) -> Decoder:
    """The same model through its Hugging Face folder."""
    reference(family).save_pretrained(folder)
    return models.load(folder, device=device)


PROMPTS = [[5, 6, 7], [8], list(range(10, 31)), [40, 41, 42, 43, 44, 45, 46, 47, 48]]  # some longer than the window


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def model(family, tmp_path_factory, device):
    return ours(family, tmp_path_factory.mktemp(family), device)


@pytest.fixture(scope="module")
def llama(tmp_path_factory, device):
    return ours("llama", tmp_path_factory.mktemp("llama"), device)


def _batch(model, prompts, use_cache):
    return Batch(model, prompts, use_cache=use_cache, capacity=4)


def test_cached_logits_equal_uncached(model):
    """An uneven batch, step by step and past the window; a row leaves on the way."""
    with torch.no_grad():
        cached, uncached = (_batch(model, PROMPTS, use_cache) for use_cache in (True, False))
        for step in range(20):
            logits = cached.logits()
            # The same sums in another order: 1e-5 at logits of size 10; 1e-4 leaves room for other machines.
            torch.testing.assert_close(logits, uncached.logits(), rtol=1e-4, atol=1e-4)
            token = torch.randint(3, 96, (len(logits),), device=logits.device)
            kept = [0, 1, 3] if step == 4 else list(range(len(token)))
            for batch in (cached, uncached):
                batch.reorder(kept)
                batch.extend(token[kept])


def test_neighbours_do_not_change_a_row(model):
    """Padding is invisible: logits in the batch equal logits alone, where nothing is padded."""
    with torch.no_grad():
        together = _batch(model, PROMPTS, use_cache=True)
        alone = [_batch(model, [prompt], use_cache=True) for prompt in PROMPTS]
        for _ in range(10):
            logits = together.logits()
            torch.testing.assert_close(logits, torch.cat([row.logits() for row in alone]), rtol=1e-4, atol=1e-4)
            token = torch.randint(3, 96, (len(PROMPTS),), device=logits.device)
            together.extend(token)
            for row, single in enumerate(alone):
                single.extend(token[row : row + 1])


def test_greedy_tokens_equal_transformers(model, family):
    ours_ = generate(model, PROMPTS, max_new_tokens=30, temperature=0, eos_id=2)
    oracle = reference(family)
    for prompt, tokens in zip(PROMPTS, ours_, strict=True):
        ids = torch.tensor([prompt])
        whole = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, eos_token_id=2, pad_token_id=0
        )
        assert tokens == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"top_k": 20, "top_p": 0.9}, {"repetition_penalty": 1.5}])
def test_text_depends_on_prompt_and_seed_only(llama, settings):
    settings = settings | {"max_new_tokens": 25, "eos_id": list(range(2, 6))}
    seeds = [3, 4, 5, 6]
    batch = generate(llama, PROMPTS, seed=seeds, **settings)
    assert (
        len({len(tokens) for tokens in batch}) > 1 or settings.get("temperature") == 0
    )  # rows leave at different steps
    for prompt, seed, tokens in zip(PROMPTS, seeds, batch, strict=True):
        assert generate(llama, [prompt], seed=seed, **settings) == [tokens]
        assert generate(llama, [[9] * 30, prompt, prompt], seed=seed, **settings)[1:] == [tokens] * 2
    assert generate(llama, PROMPTS, seed=seeds, use_cache=False, **settings) == batch


def test_other_seeds_give_other_texts(llama):
    texts = generate(llama, [[5, 6]] * 4, max_new_tokens=20, seed=range(4))
    assert len(set(map(tuple, texts))) == 4


def test_rows_stop_at_an_end_token_and_callback_sees_every_token(llama):
    seen = [[] for _ in PROMPTS]
    ends = [2, 10, 11, 12, 13, 14, 15, 16, 17]
    outputs = generate(
        llama, PROMPTS, max_new_tokens=40, seed=1, eos_id=ends, on_token=lambda row, token: seen[row].append(token)
    )
    assert seen == outputs
    for tokens in outputs:
        assert tokens[-1] in ends or len(tokens) == 40
        assert not set(tokens[:-1]) & set(ends)
    assert any(tokens[-1] in ends for tokens in outputs)


def test_rows_stop_at_the_end_of_the_context(llama):
    with pytest.warns(UserWarning, match="leaves room for 8 of 50 new tokens: .*max_position_embeddings is 128"):
        outputs = generate(llama, [[7] * 120, [7]], max_new_tokens=50)
    assert [len(tokens) for tokens in outputs] == [8, 50]


def test_num_tokens_bars_the_padding_of_the_vocabulary(llama):
    outputs = generate(llama, PROMPTS, max_new_tokens=40, temperature=1.5, num_tokens=20)
    assert max(map(max, outputs)) < 20


def test_empty_prompt_starts_from_bos(llama):
    assert generate(llama, [[], [1]], max_new_tokens=5, bos_id=1)[0] == generate(llama, [[1]], max_new_tokens=5)[0]
    assert generate(llama, [], max_new_tokens=5) == []


def test_bfloat16_runs_and_keeps_its_dtype(llama, tmp_path, device):
    model = ours("qwen3", tmp_path, device).to(torch.bfloat16)
    cache = KeyValueCache(model.config.num_hidden_layers)
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]], device=device), cache=cache)
    tokens = generate(model, PROMPTS, max_new_tokens=10, temperature=0)
    assert [len(row) for row in tokens] == [10] * 4
    assert (
        cache.append(0, *[torch.zeros(1, 1, 2, 8, dtype=torch.bfloat16, device=device)] * 2)[0].dtype == torch.bfloat16
    )


def test_training_goes_on_after_generation(llama):
    """Generation leaves the training flag alone and no inference tensor behind in the model."""
    llama.train()
    generate(llama, PROMPTS, max_new_tokens=60)
    assert llama.training
    tokens = torch.randint(0, 96, (2, 100), device=llama.output_weight.device)
    llama.logits(llama(tokens)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in llama.parameters())
    llama.zero_grad(set_to_none=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": [[1], []]}, "prompt 1 is empty and there is no bos_id"),
        ({"prompts": [[1, 96]]}, "prompt 0 holds token 96, outside the model's vocabulary of 96"),
        ({"prompts": [[1] * 128]}, "prompt 0 has 128 tokens; .*max_position_embeddings 128 leaves no room"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"num_tokens": 97}, "num_tokens must be from 1 to the model's vocab_size 96, got 97"),
        ({"seed": [1, 2]}, "2 seeds for 1 prompts"),
        ({"top_p": 2.0}, "top_p must be"),
    ],
)
def test_wrong_arguments_are_refused(llama, arguments, message):
    with pytest.raises(ValueError, match=message):
        generate(llama, **{"prompts": [[1]], "max_new_tokens": 3, **arguments})


def test_broken_weights_are_refused(tmp_path, device):
    model = ours("llama", tmp_path, device)
    with torch.no_grad():
        model.output_weight[3, 0] = torch.nan
    with pytest.raises(ValueError, match="logits are not finite"):
        generate(model, [[1]], max_new_tokens=3)
