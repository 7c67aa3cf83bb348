"""TRL's `GRPOTrainer` learns from a Toolyard server, with a tiny model that is made on the spot.

    pip install trl openreward matplotlib
    python examples/training/trl_grpo.py --out trl

It needs no GPU, no download and a few minutes. `OpenRewardSpec` takes the URL of the server and gives the trainer its
tasks and tools. The environment is cups.py. The model is a Qwen3 of 0.1 million parameters: before TRL gets it, it
learns from made-up conversations how to write calls. In most of these somebody lifts any cup, which earns 0.25 on
average. What TRL teaches it is to peek first.

Each seed is played twice: by the model that learns and, for control, by the same one at a learning rate of 0. Curves
are written as JSON and PNG, episodes into a store that `toolyard episodes` and Studio read.
"""

import argparse
import copy
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")

import torch
from cups import CUPS
from curves import FROZEN, LEARNS, report
from machine import machine
from serving import served
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.openreward import OpenRewardSpec

BEGIN, END, PAD, UNKNOWN = "<|begin|>", "<|end|>", "<|pad|>", "<|unknown|>"
CALL, CALLED = "<tool_call>", "</tool_call>"
TEMPLATE = (
    "{% for message in messages %}"
    f"{BEGIN}{{{{ message.role }}}}\n"
    "{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content }}"
    "{% for call in message.tool_calls %}"
    f"{CALL}{{{{ call.function | tojson }}}}{CALLED}"
    "{% endfor %}"
    f"{END}"
    "{% endgeneration %}"
    f"{{% else %}}{{{{ message.content }}}}{END}{{% endif %}}"
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{BEGIN}assistant\n{{% endif %}}"
)
"""How a conversation is written down."""
READING = {
    "defaults": {"role": "assistant"},
    "start_anchor": f"{BEGIN}assistant\n",
    "fields": {
        "tool_calls": {
            "open": CALL,
            "close": CALLED,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": END, "content": "text"},
    },
}
"""How transformers finds the tool calls in what the model wrote."""
PIECES = r"<[^<>]+>|\d| ?[A-Za-z]+|[^<A-Za-z\d]+?(?= [A-Za-z]|[<A-Za-z\d]|$)"
PROMPT = f"A coin is under one of {CUPS} cups. Peek, or lift a cup."
OUTCOMES = ["There it is.", "There is nothing."]

PEEKS = 0.4
"""How often somebody peeks in a made-up conversation. Most lift any cup."""
TASKS = 256
TURNS = 3
"""Of tool calls in an episode, at most."""
EPISODES, GROUP = 64, 8
"""Of a step, and of these, how many play the same task."""
ROUNDS = 2
"""Of learning from the episodes of a step."""
TALKS_AT_ONCE = 16
TALKING_RATE = 5e-3
"""Of learning to write calls, at its beginning."""


def call(name: str, **arguments: int) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def talk(dice: random.Random) -> list[dict[str, Any]]:
    """A conversation as the environment allows it."""
    messages = [{"role": "user", "content": PROMPT}]
    cup = dice.randint(1, CUPS)
    if dice.random() < PEEKS:
        said = {"role": "tool", "name": "peek", "content": f"The coin is under cup {cup}."}
        messages += [call("peek"), said]
    lifted = {"role": "tool", "name": "lift", "content": dice.choice(OUTCOMES)}
    return [*messages, call("lift", cup=cup), lifted, {"role": "assistant", "content": "Done."}]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """It knows the words, spaces and punctuation of some conversations."""
    dice = random.Random(0)
    bare = tokenizer_of([])
    texts = [bare.apply_chat_template(talk(dice), tokenize=False) for _ in range(500)]
    return tokenizer_of(sorted({piece for text in texts for piece in re.findall(PIECES, text)} - {BEGIN, END}))


def tokenizer_of(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    vocabulary = {piece: number for number, piece in enumerate([PAD, UNKNOWN, BEGIN, END, *pieces])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    words.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=END, pad_token=PAD, unk_token=UNKNOWN, additional_special_tokens=[BEGIN]
    )
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, READING
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int, talks: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=16,
            max_position_embeddings=256,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            tie_word_embeddings=True,
            initializer_range=0.05,
        )
    )
    learn_to_write(model, tokenizer, random.Random(seed), talks)
    return model


def learn_to_write(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, dice: random.Random, talks: int
) -> None:
    """Predict what the assistant writes in made-up conversations."""
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(talks):
        optimizer.param_groups[0]["lr"] = TALKING_RATE * (1 - step / talks)
        batch = tokenizer.apply_chat_template(
            [talk(dice) for _ in range(TALKS_AT_ONCE)],
            return_dict=True,
            return_assistant_tokens_mask=True,
            return_tensors="pt",
            padding=True,
            tokenizer_kwargs={"padding_side": "right"},
        )
        scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        wanted = batch["input_ids"][:, 1:].masked_fill(batch["assistant_masks"][:, 1:] == 0, -100)
        loss = functional.cross_entropy(scores.transpose(1, 2), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def headers_of(spec: OpenRewardSpec) -> MutableMapping[str, str]:
    """What openreward's client sends with every request.

    Neither TRL nor openreward has an option for it, so this reaches into both.
    """
    headers: MutableMapping[str, str] = spec._sdk_env._async.client.headers
    return headers


def rewards_of(environments: Sequence[Any], **rest: Any) -> list[float | None]:
    """The last reward of an episode, as `spec.reward_funcs` has it, and 0 for a model that called no tool.

    With `spec.reward_funcs` such an episode has no reward at all. A model that forgets how to write calls would get
    away with it.
    """
    return [one.reward if one.rewards else 0.0 for one in environments]


class Labels(TrainerCallback):
    """Tells the server which step of which run an episode belongs to, and prints the reward."""

    def __init__(self, headers: MutableMapping[str, str], run: str, policy: str) -> None:
        self.headers, self.run, self.policy = headers, run, policy
        self.name(0)

    def name(self, step: int) -> None:
        self.headers["X-Toolyard-Run"] = self.run
        self.headers["X-Toolyard-Labels"] = json.dumps({"step": str(step), "policy": self.policy})

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.name(state.global_step // ROUNDS)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if logs and logs.get("reward") is not None:
            print(f"{self.run} step {state.global_step // ROUNDS + 1} reward {logs['reward']:.3f}", flush=True)


def settings(folder: str, *, seed: int, steps: int, episodes: int, rate: float) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=steps * ROUNDS,
        learning_rate=rate,
        lr_scheduler_type="constant",
        per_device_train_batch_size=episodes,
        num_generations=GROUP,
        num_iterations=ROUNDS,
        max_completion_length=160,
        max_tool_calling_iterations=TURNS,
        temperature=1.0,
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


@dataclass(frozen=True)
class Player:
    """Plays one model after the other through one server."""

    url: str
    run: str
    """What the runs of the episodes are named after."""
    tokenizer: PreTrainedTokenizerFast

    def play(self, model: Qwen3ForCausalLM, *, seed: int, steps: int, episodes: int, rate: float) -> list[float]:
        """Train a copy of the model. Give the mean reward of each step."""
        spec = OpenRewardSpec(self.url, env_name="cups", num_tasks=TASKS)
        policy = LEARNS if rate else FROZEN
        with tempfile.TemporaryDirectory() as folder:
            trainer = GRPOTrainer(
                model=copy.deepcopy(model),
                processing_class=self.tokenizer,
                args=settings(folder, seed=seed, steps=steps, episodes=episodes, rate=rate),
                train_dataset=spec.train_dataset,
                environment_factory=spec.environment_factory,
                reward_funcs=rewards_of,
                callbacks=[Labels(headers_of(spec), f"{self.run}-{policy}-{seed}", policy)],
            )
            trainer.remove_callback(PrinterCallback)
            trainer.train()
        return [round(line["reward"], 4) for line in trainer.state.log_history if line.get("reward") is not None]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--talks", type=int, default=400, help="steps of learning to write calls, before TRL")
    parser.add_argument("--steps", type=int, default=20, help="of the model that learns")
    parser.add_argument("--control-steps", type=int, default=8, help="of the frozen one")
    parser.add_argument("--episodes", type=int, default=EPISODES, help=f"of each step, in groups of {GROUP}")
    parser.add_argument("--rate", type=float, default=1e-3, help="of learning")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    parser.add_argument("--url", default="", help="of a server that serves cups.py; without it, one is started")
    parser.add_argument("--run", default="trl", help="what the runs of these episodes are named after")
    parser.add_argument("--record", default="episodes.db", help="where a server that is started records")
    parser.add_argument("--out", type=Path, default=Path("trl"), help="of OUT.json and OUT.png")
    return parser


def curves(args: argparse.Namespace, url: str) -> Iterator[dict[str, dict[str, Sequence[float]]]]:
    """After each model, the curves of all until then."""
    found: dict[str, dict[str, Sequence[float]]] = {LEARNS: {}, FROZEN: {}}
    player = Player(url, args.run, make_tokenizer())
    for seed in args.seeds:
        model = make_model(player.tokenizer, seed, args.talks)
        for name, steps, rate in ((LEARNS, args.steps, args.rate), (FROZEN, args.control_steps, 0.0)):
            if steps:
                found[name][str(seed)] = player.play(model, seed=seed, steps=steps, episodes=args.episodes, rate=rate)
                yield found


def main() -> None:
    args = arguments().parse_args()
    torch.set_num_threads(args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log = args.out.with_suffix(".server.log")
    verdict = False
    with served("cups.py", "--record", args.record, "--log-level", "warning", url=args.url, log=log) as url:
        # openreward's client makes other host names of the one it is given; for a server of one's own it needs these.
        os.environ["OPENREWARD_SESSION_URL"] = os.environ["OPENREWARD_API_URL"] = url
        for found in curves(args, url):
            more = {"machine": machine("cpu"), "steps": args.steps, "rate": args.rate}
            verdict = report(args.out, "Peeking under cups, with TRL", found[LEARNS], found[FROZEN], more)
    sys.exit(not verdict)


if __name__ == "__main__":
    main()
