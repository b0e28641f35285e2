"""The next token of a text: from data to perplexity and the model that a run gives back."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from support import ADAPTERS, each_method, refusing
from torch import nn
from torch.nn import functional as F

import fedpfl
from fedpfl.core import metrics
from fedpfl.core.errors import ConfigError, DataError, FedpflError
from fedpfl.core.metrics import NEXT_TOKEN
from fedpfl.data.datasets.text import CHARACTERS, encode_characters, read_plays
from fedpfl.training.loop import evaluate
from fedpfl.training.losses import KINDS
from fedpfl.training.measure import find

LENGTH, VOCABULARY = 12, 7
# Those that need one class for a sample.
NEED_CLASSES = refusing("loss")
NEED_SAMPLES = {"fedcp", "feddbe", "fedmrl", "floco", "pfedgate"}


def counting(step, count=24, seed=1):
    """Return texts that count by a step, modulo the vocabulary, from any number; the last two places are padding."""
    begin = np.random.default_rng(seed).integers(1, VOCABULARY, count)
    x = (begin[:, None] - 1 + step * np.arange(LENGTH)) % (VOCABULARY - 1) + 1
    x[:, -2:] = 0
    return x, np.where(x > 0, x, -100)


def train(data=None, method="fedavg", **settings):
    data = [counting(1), counting(5, seed=2)] if data is None else data
    usual = {"model": "decoder", "loss": NEXT_TOKEN, "metrics": "perplexity", "num_server_rounds": 1, "workers": 0}
    return fedpfl.run(method, data=data, **{**usual, "local_epochs": 1, "quiet": True, **settings})


def numbers(run):
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in run.rounds.to_dict("records")]


def test_the_loss_is_that_of_the_tokens_that_count_each_predicted_from_those_before():
    torch.manual_seed(1)
    outputs, y = torch.randn(5, 6, 4), torch.randint(4, (5, 6)).int()
    y[0], y[1, 3:] = -100, -100
    said, truth = outputs[:, :-1].reshape(-1, 4), y[:, 1:].reshape(-1).long()
    loss = KINDS[NEXT_TOKEN].criterion
    assert loss(outputs, y) == pytest.approx(float(F.cross_entropy(said, truth)))  # which ignores −100
    assert loss(outputs, y, "sum") == pytest.approx(float(F.cross_entropy(said, truth, reduction="sum")))
    each = loss(outputs, y, "none")
    assert each[0] == 0 and each[2] == pytest.approx(float(F.cross_entropy(outputs[2, :-1], y[2, 1:].long())))
    assert loss(outputs[:1], y[:1]) == 0
    score = evaluate(lambda x: outputs[x], fedpfl.Samples(torch.arange(5), y), NEXT_TOKEN, find("perplexity"))
    assert score.samples == int((truth >= 0).sum()) == 2 + 3 * 5
    assert score.correct == int((said.argmax(1) == truth).sum())
    perplexity = metrics.value("perplexity", *score.metrics["perplexity"])
    assert perplexity == pytest.approx(math.exp(float(loss(outputs, y))))
    assert evaluate(lambda x: outputs[x], fedpfl.Samples(torch.arange(1), y[:1]), NEXT_TOKEN).samples == 0


def test_tests_are_the_same_in_whatever_batches():
    torch.manual_seed(1)
    model, (x, y) = fedpfl.models.build("decoder", (LENGTH,), VOCABULARY, VOCABULARY).eval(), counting(1, 50)
    samples = fedpfl.Samples(torch.from_numpy(x), torch.from_numpy(y))
    score = evaluate(model, samples, NEXT_TOKEN)
    with torch.no_grad():
        whole = KINDS[NEXT_TOKEN].criterion(model(samples.x), samples.y, "sum")
    assert score.loss_sum == pytest.approx(float(whole), rel=1e-5) and score.samples == 50 * (LENGTH - 3)


def test_a_perplexity_is_each_client_s_and_pooled_over_tokens():
    run = train([counting(1, 60), counting(5, 20, seed=2)], "fedper", num_server_rounds=2)
    last, row = run.clients.loc[2], run.rounds.iloc[-1]
    assert row["personalised_perplexity"] == pytest.approx(last["perplexity"].mean())
    losses, tokens = np.log(last["perplexity"]), np.array([15, 5]) * (LENGTH - 3)  # of the test samples
    assert row["personalised_loss"] == pytest.approx(np.average(losses, weights=tokens))
    assert row["personalised_perplexity_pooled"] == pytest.approx(math.exp(row["personalised_loss"]))
    assert metrics.value("perplexity", 1e9, 1) == pytest.approx(metrics.LARGEST)  # of a model that diverged


def test_a_decoder_sees_no_later_token_and_learns():
    torch.manual_seed(1)
    model = fedpfl.models.build("decoder", (LENGTH,), VOCABULARY, VOCABULARY).eval()
    x = torch.from_numpy(counting(1)[0])
    other = x.clone()
    other[:, 6:] = 3
    assert torch.equal(model(x)[:, :6], model(other)[:, :6]) and not torch.equal(model(x)[:, 6:], model(other)[:, 6:])
    assert torch.allclose(model(x[:, :6]), model(x)[:, :6], atol=1e-5)  # to write on from a shorter text
    run = train(method="fedper", num_server_rounds=3, local_epochs=20, learning_rate=0.1, batch_size=6)
    assert run.clients.loc[3]["perplexity"].max() < 1.5
    at_once = train(method="fedper", num_server_rounds=2, clients_at_once=2)
    alone = train(method="fedper", num_server_rounds=2)
    assert at_once.clients["perplexity"].to_numpy() == pytest.approx(alone.clients["perplexity"].to_numpy(), abs=0.01)


@pytest.mark.parametrize("method", each_method(also=NEED_CLASSES | NEED_SAMPLES))
def test_each_method_trains_or_refuses_in_a_line_before_round_1(method, tmp_path):
    adapters = {"trainable": "lora"} if method in ADAPTERS else {}
    if method in NEED_CLASSES | NEED_SAMPLES:
        with pytest.raises(ConfigError, match=r"must be cross-entropy|features of a whole sample|its gate computes"):
            train(method=method, output_dir=tmp_path)
        assert not any((run / "metrics.jsonl").exists() for run in tmp_path.iterdir())
        return
    row = train(method=method, learning_rate=0.005, validation_fraction=0.2, choose_by="perplexity", **adapters)
    assert 1 <= row.rounds.iloc[-1]["personalised_perplexity"] < 10 * VOCABULARY


def test_texts_are_prompts_and_answers_and_only_answers_are_predicted(capsys):
    def by_character(text):
        return [1 + "abcde\n".index(sign) for sign in text]

    by_character.vocab_size, by_character.max_length = VOCABULARY, 6
    seen = []

    def kept(outputs, y):
        seen.append(y)
        return (outputs == y).sum(), (y >= 0).sum()

    client = {"x": ["ab", "", "abcde"] * 8, "y": ["cd\n", "ab\n", "ed\n"] * 8}
    run = train([client, client], tokenizer=by_character, metrics=[kept, "perplexity"], quiet=False)
    texts = {tuple(row.tolist()) for y in seen for row in y}
    assert texts >= {(-100, 3, 4, 6, -100), (2, 6, -100, -100, -100), (-100, -100, -100, -100, 5)}
    row, said = run.rounds.iloc[-1], capsys.readouterr()
    assert row["personalised_kept_pooled"] == pytest.approx(row["personalised_weighted"])
    assert "8 of 24 texts have more than 6 tokens" in " ".join((said.out + said.err).split())


def test_the_same_tokens_in_a_torch_dataset():
    pairs = [counting(1), counting(5, seed=2)]
    sets = [torch.utils.data.TensorDataset(*map(torch.from_numpy, pair)) for pair in pairs]
    assert numbers(train(sets)) == numbers(train(pairs))


def test_roles_of_plays_are_clients_and_their_texts_what_is_predicted(tmp_path):
    said = {"A / Ann": "to be or not to be. " * 60, "B / Bob": "never, never, never! " * 60}
    (tmp_path / "shakespeare.json").write_text(json.dumps(said))
    data = read_plays(tmp_path / "shakespeare.json", each=True)
    assert (
        data.label_kind == NEXT_TOKEN
        and data.num_classes == data.vocabulary == len(CHARACTERS)
        and data.y_train.dtype == np.int32
    )
    assert np.array_equal(data.x_train, data.y_train) and data.x_train.shape == (14 + 15, 80)
    assert np.array_equal(data.x_train[0], encode_characters(said["A / Ann"][:80]))
    run = fedpfl.run(
        "fedper", dataset="shakespeare", data_dir=str(tmp_path), loss=NEXT_TOKEN, model="decoder",
        metrics="perplexity", num_server_rounds=1, local_epochs=1, workers=0, quiet=True,
    )  # fmt: skip
    assert 1 < run.summary["metrics"]["perplexity"] < 100


def test_a_file_and_the_answers_of_a_device_s_model(tmp_path):
    from fedpfl.bench.device.predict import answers
    from fedpfl.client.device_model import load_model

    x, y = counting(1, 40)
    np.savez(tmp_path / "a.npz", x=x, y=y, vocabulary=VOCABULARY, client=np.arange(40) % 2)
    run = train(
        str(tmp_path / "a.npz"), "fedper", dataset="npz", device_models="always", state_dir=str(tmp_path / "state")
    )
    about = json.loads((run.path / "personal" / "client-00000.json").read_text())
    assert about["loss"] == NEXT_TOKEN and about["num-classes"] == VOCABULARY
    model = load_model(next(tmp_path.glob("state/*/client-00001")))
    assert model.predict(x[:2]).sum(-1) == pytest.approx(np.ones((2, LENGTH)), abs=1e-5)
    assert np.shape(answers(model, x[:2])[1]["tokens"]) == (LENGTH,)


class Small(nn.Module):
    """A model of a user's: each token from the one before."""

    def __init__(self, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 8)
        self.out = nn.Linear(8, vocabulary)

    def forward(self, x):
        return self.out(self.embedding(x))


class Tied(Small):
    """The same with one array for both layers."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.out.weight = self.embedding.weight


class Bidirectional(Small):
    """The same, but it sees the token that it is to predict."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.both = nn.LSTM(8, 4, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.out(self.both(self.embedding(x))[0])


class Transposed(Small):
    """The same with the tokens where the places belong, which shows in no shape if there are as many."""

    def forward(self, x):
        return super().forward(x).transpose(1, 2)


def test_a_model_of_one_s_own_has_its_last_linear_layer_as_head():
    assert {*train(method="fedrep", model=Small).model(client=0).state_dict()} == {
        "embedding.weight", "out.weight", "out.bias",
    }  # fmt: skip
    assert len(train(model=Tied).rounds) == 1
    with pytest.raises(ConfigError, match="tied weights"):
        train(model=Tied, method="fedper")


def test_adapters_alone_travel_where_nothing_else_trains():
    pytest.importorskip("peft")
    adapters = {"trainable": "adapters", "lora_rank": 2, "learning_rate": 0.1}
    run = train(**adapters)
    with pytest.raises(ConfigError, match="fits no linear layer"):
        train(model=Small, **adapters)  # whose only one is its head
    adapted = sum(2 * (64 + 64) * 4 + 2 * 2 * (64 + 256) for _ in range(2))  # two blocks, rank 2
    assert 4 * adapted < run.rounds["bytes_up"].iloc[0] / 2 < 4 * adapted + 5000
    with_head = train(**{**adapters, "trainable": "lora"}).rounds["bytes_up"].iloc[0]
    assert with_head - run.rounds["bytes_up"].iloc[0] >= 2 * 4 * 65 * VOCABULARY


def test_a_causal_model_of_transformers_is_read_from_a_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(1)
    stored = transformers.AutoModelForCausalLM.from_config(config)
    stored.save_pretrained(tmp_path / "llama")
    model = fedpfl.models.build(f"hf:{tmp_path / 'llama'}", (LENGTH,), VOCABULARY, VOCABULARY, tokens=True).eval()
    x = torch.from_numpy(counting(1)[0])
    assert torch.equal(model(x), stored.eval()(x, use_cache=False).logits)
    llama = {"model": f"hf:{tmp_path / 'llama'}", "lora_rank": 2, "lora_targets": "*q_proj,*v_proj"}
    run = train(method="fedsa-lora", trainable="adapters", **llama)
    assert run.rounds["bytes_up"].iloc[0] < 2 * (4 * 2 * 2 * 16 + 2000)  # A of two layers
    with pytest.raises(ConfigError, match="tied weights"):
        train(trainable="lora", **llama)
    data = [(*counting(step), *counting(step, 6, seed=3)) for step in (1, 5)]
    run = train(
        data, "fedsa-lora", trainable="adapters", device_models="always", state_dir=str(tmp_path / "s"), **llama
    )
    x, y = map(torch.from_numpy, data[1][2:])
    outputs = run.model(client=1)(x)
    assert run.clients["perplexity"][1, 1] == pytest.approx(
        math.exp(KINDS[NEXT_TOKEN].criterion(outputs, y).item()), rel=1e-5
    )
    written = fedpfl.load_model(next(tmp_path.glob("s/*/client-00001")))
    assert written.about["kind"] == "weights"
    assert written.predict(x.numpy()) == pytest.approx(outputs.softmax(-1).detach().numpy(), abs=1e-5)
    few = [(x.clip(0, 3), y.clip(-100, 3)) for x, y in (counting(1), counting(5))]
    with pytest.raises(ConfigError, match="has 7 tokens, and the data 4: num-classes, or vocabulary in a file"):
        train(few, **llama)
    assert len(train(few, trainable="adapters", num_classes=VOCABULARY, **llama).rounds) == 1


def test_what_texts_do_not_tell_is_told_before_round_1():
    x, y = counting(1)
    whole, idle, late = x.copy(), y.copy(), np.roll(x, 2, axis=1)
    idle[:3] = -100
    runs = {"end": (x, whole), "no": (x, idle), "begin": (late, np.where(late > 0, late, -100)), "": (x, y)}
    said = {word: (train(of(*pair)).path / "task.json").read_text() for word, pair in runs.items()}
    assert "48 of 48 texts end in token 0 twice or more, which is to be predicted" in said["end"]
    assert "6 of 48 texts have no token to predict: they train and test nothing" in said["no"]
    assert (
        "48 of 48 texts begin with token 0 twice or more: if it fills texts up, move it to their end" in said["begin"]
    )
    assert not any(word in said[""] for word in ("twice or more", "no token to predict"))


def signs(text):
    return [1 + "ab".index(sign) for sign in text]


signs.vocab_size, signs.max_length = 3, 8


def test_a_model_may_know_more_tokens_than_a_tokenizer_gives():
    data = [{"x": ["a"] * 12, "y": ["bab"] * 12}] * 2
    shapes = [
        train(data, tokenizer=signs, **more).model().base.embedding.weight.shape for more in ({}, {"num_classes": 9})
    ]
    assert shapes == [(3, 64), (9, 64)]
    with pytest.raises(DataError, match="has 3 tokens, num-classes is 2"):
        train(data, tokenizer=signs, num_classes=2)


def of(x, y):
    return [(x, y), (x, y)]


X, Y = counting(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": (X, Y), "partitioner": "dirichlet"}, "has tokens to predict: use iid, natural"),
        ({"loss": "cross-entropy", "metrics": "", "model": "mlp"}, "must be uint8"),
        ({"class_weights": "balanced"}, "must be none for loss = next-token"),
        ({"permute_labels": True}, "which has targets and no classes"),
        ({"model": "transformer"}, "gives numbers for each sample, but loss = next-token"),
        ({"data": of(X, X[:, 0])}, "client 0: y is int.* 24, and x .*×12: must be the tokens of x"),
        ({"data": of(X.astype(np.float32), Y)}, "client 0: y: x is float32 .*: .* x must be tokens, whole numbers"),
        ({"data": of(X, np.where(Y > 0, Y, -1))}, r"client 0: y\[0, \d+\] is -1, and x \d there: .* or -100"),
        ({"data": of(X, Y[:, :4])}, "client 0: y is int.* 24×4, and x .*×12: must be the tokens of x"),
        ({"data": of(X[:, :-1], X[:, 1:])}, "here y is x shifted by one: fedpfl shifts it"),
        ({"data": [(X, Y), (X, np.full_like(Y, -100))]}, "client 1 has no token to predict in any of its .* training"),
        ({"data": of(X[:, :1], X[:, :1])}, "client 0 has no token to predict in any of its .* training samples"),
        ({"model": Bidirectional}, "sees later tokens: its outputs, n x length x 7, must depend on the tokens up to"),
        ({"model": Transposed, "data": of(X[:, :7], X[:, :7])}, "sees later tokens"),
        ({"num_classes": 5}, "tokens must be 0 … 4"),
        ({"metrics": "auroc"}, "must be one of accuracy, perplexity"),
        ({"loss": "next-token:math:exp"}, "must be one of"),
    ],
)
def test_what_does_not_fit_is_refused(settings, message):
    with pytest.raises(FedpflError, match=message) as refused:
        train(**settings)
    assert isinstance(refused.value, (ConfigError, DataError)) and "\n" not in str(refused.value)


def test_a_decoder_is_refused_for_classes():
    news = fedpfl.Dataset.of("news", X, X[:, 0] % 2, vocabulary=VOCABULARY)
    with pytest.raises(ConfigError, match="gives numbers for each token, but loss = cross-entropy"):
        fedpfl.run("fedavg", data=news, model="decoder", num_clients=2, quiet=True)
