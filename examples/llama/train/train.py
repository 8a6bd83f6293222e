"""Trains the storyteller, the small model that ships with the examples: a Llama-shaped transformer of about 0.9 million
weights on endless stories of the grammar in stories.py. Writes a Hugging Face folder: config.json, model.safetensors
(float16), tokenizer.json, tokenizer_config.json.

    apt-get install python3-torch
    python3 examples/llama/train/train.py --minutes 45 --out examples/llama/storyteller

One thread is enough. The learning rate follows the clock, so any time gives a finished model; more time gives a better one, also
later, with --from.
"""

import argparse
import json
import math
import os
import random
import struct
import time

import torch
from torch import nn
from torch.nn import functional

from bpe import Bpe
from stories import conversation

SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 384,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "max_position_embeddings": 1024,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 1,
    "torch_dtype": "float16",
}
ANSWER_WEIGHT, LONGEST_ANSWER = 5.0, 80  # characters; stories are longer
TEMPLATE = ("{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
            "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        self.q_proj = nn.Linear(c["hidden_size"], self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.dim, bias=False)
        self.v_proj = nn.Linear(c["hidden_size"], self.kv_heads * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, c["hidden_size"], bias=False)

    def forward(self, x, cos, sin, mask):
        rows, tokens, _ = x.shape
        q = rotate(self.q_proj(x).view(rows, tokens, self.heads, self.dim).transpose(1, 2), cos, sin) / math.sqrt(self.dim)
        k = rotate(self.k_proj(x).view(rows, tokens, self.kv_heads, self.dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(rows, tokens, self.kv_heads, self.dim).transpose(1, 2)
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        weights = (q @ k.transpose(2, 3)).add_(mask).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(rows, tokens, -1))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(c["hidden_size"], c["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(c["intermediate_size"], c["hidden_size"], bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Norm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(c["hidden_size"]))
        self.eps = c["rms_norm_eps"]

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(c), Attention(c)
        self.post_attention_layernorm, self.mlp = Norm(c), Mlp(c)

    def forward(self, x, cos, sin, mask):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Names of weights are Hugging Face's, under `model.`; the head is the embedding."""

    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = Norm(c)
        frequencies = c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
        angles = torch.arange(c["max_position_embeddings"]).float()[:, None] * frequencies
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.04)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        length = tokens.shape[1]
        mask = torch.full((length, length), float("-inf")).triu(1)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length], mask)
        return self.norm(x) @ self.embed_tokens.weight.T


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def batches(bpe, rng, rows, tokens):
    """Endless [rows, tokens + 1] ids, and as many weights: conversations one after another. Answers, which are short and whose
    right words stand in the story, count several times."""
    begin, end, *roles = (bpe.ids[token] for token in SPECIAL)
    role_of = dict(zip(("user", "assistant"), roles))
    left, weights = [], []
    wanted = rows * (tokens + 1)
    while True:
        while len(left) < wanted:
            left.append(begin)
            weights.append(1.0)
            for role, text in conversation(rng):
                ids = [role_of[role], *bpe.encode(text), end]
                is_answer = role == "assistant" and len(text) < LONGEST_ANSWER
                left += ids
                weights += [1.0, *[ANSWER_WEIGHT if is_answer else 1.0] * (len(ids) - 1)]
        yield torch.tensor(left[:wanted]).view(rows, tokens + 1), torch.tensor(weights[:wanted]).view(rows, tokens + 1)
        left, weights = left[wanted:], weights[wanted:]


def save_safetensors(tensors, file):
    header, offset, parts = {}, 0, []
    for name, tensor in tensors.items():
        data = tensor.detach().to(torch.float16).contiguous().numpy().tobytes()
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def load(model, file):
    with open(file, "rb") as given:
        header = json.loads(given.read(struct.unpack("<Q", given.read(8))[0]))
        data = given.read()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            entry = header[f"model.{name}"]
            stored = torch.frombuffer(bytearray(data[slice(*entry["data_offsets"])]), dtype=torch.float16)
            weight.copy_(stored.view(entry["shape"]))


def save(model, bpe, config, folder):
    os.makedirs(folder, exist_ok=True)
    save_safetensors({f"model.{name}": weight for name, weight in model.named_parameters()},
                     os.path.join(folder, "model.safetensors"))
    bpe.save(os.path.join(folder, "tokenizer.json"))
    settings = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE,
                "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"]}
    for name, content in (("config.json", config), ("tokenizer_config.json", settings)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            json.dump(content, out, indent=2)
            out.write("\n")


def main():
    arguments = argparse.ArgumentParser(description="Trains the storyteller.")
    arguments.add_argument("--minutes", type=float, default=45)
    arguments.add_argument("--out", required=True)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--from", dest="origin", help="a folder this script wrote, to go on from")
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)

    if options.origin:
        bpe = Bpe.load(os.path.join(options.origin, "tokenizer.json"))
    else:
        sample = random.Random(options.seed)
        bpe = Bpe.learn("\n".join(text for _ in range(4000) for _, text in conversation(sample)), 768, SPECIAL)
    config = {**CONFIG, "vocab_size": len(bpe.ids)}
    model = Llama(config)
    if options.origin:
        load(model, os.path.join(options.origin, "model.safetensors"))
    peak = 1.5e-3 if options.origin else 3e-3
    print(f"{sum(weight.numel() for weight in model.parameters()):,} weights, {len(bpe.ids)} tokens", flush=True)

    decayed = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0}],
                                  lr=0, betas=(0.9, 0.98))
    # Going on takes another seed, or it would see the same stories again.
    rng = random.Random(options.seed + (2 if options.origin else 1))
    short, long = batches(bpe, rng, 4, 256), batches(bpe, rng, 1, 1024)
    begin, step, trained, mean, saved = time.time(), 0, 0, None, 0.0
    while (done := (time.time() - begin) / (60 * options.minutes)) < 1:
        # Long contexts cost more: they come last, when what there is to learn of them is to look further back.
        batch, weights = next(short if done < 0.6 else long)
        rate = peak * min(1, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        loss = (losses * weights[:, 1:].flatten()).sum() / weights[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step, trained = step + 1, trained + batch[:, 1:].numel()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 0:
            print(f"{100 * done:5.1f} %  step {step}  {trained:,} tokens  loss {mean:.4f}", flush=True)
        if done - saved > 0.1:
            save(model, bpe, config, options.out)
            saved = done
    save(model, bpe, config, options.out)


if __name__ == "__main__":
    main()
