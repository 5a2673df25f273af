"""Text to ids and back, without MLX."""

import contextlib
import json
import subprocess
import sys

import pytest
from sealring_model.errors import LoadError
from sealring_model.text.tokens import (
    Tokenizer,
    check_tokenizer,
    eos_ids,
    has_chat_template,
    own_sampling,
)
from tokenizers import Tokenizer as Builder
from tokenizers import decoders, models, pre_tokenizers, trainers

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TEXT = "Grüße, 世界! 🦊 naïve café — the fox, the fox.\n\tTwo  spaces."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level tokenizer with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    builder = Builder(models.BPE())
    builder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    builder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<end>", "<user>", "<assistant>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    builder.train_from_iterator([TEXT, "the fox and the crow"] * 3, trainer)
    builder.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer(folder)


def test_text_comes_back(tokenizer):
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


def test_streamed_text_is_the_same_in_whole_characters(tokenizer):
    stream = tokenizer.stream()
    pieces = [stream.add(token) for token in tokenizer.encode(TEXT)]
    assert "".join(pieces) + stream.finish() == TEXT
    assert not any("�" in piece for piece in pieces)
    assert sum(bool(piece) for piece in pieces) > 10


def test_a_stream_that_ends_within_a_character_says_so_at_the_end(tokenizer):
    stream = tokenizer.stream()
    ids = tokenizer.encode("🦊")
    assert len(ids) > 1
    assert stream.add(ids[0]) == ""
    assert "�" in stream.finish()


@pytest.mark.parametrize("decoder", ["byte level", "spm", "spm that strips", "word piece"])
def test_ids_with_a_gap_and_beyond_the_tokenizer(folder, tmp_path, decoder):
    """Vocabularies have gaps, and output heads are padded: such a token has no text, and those
    after a gap keep theirs."""
    described = json.loads((folder / "tokenizer.json").read_text())
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    spm = [replace, {"type": "ByteFallback"}, {"type": "Fuse"}]
    decoders = {
        "byte level": described["decoder"],
        "spm": {"type": "Sequence", "decoders": spm},
        "spm that strips": {"type": "Sequence", "decoders": [*spm, strip]},
        "word piece": {"type": "WordPiece", "prefix": "##", "cleanup": False},
    }
    described["decoder"] = decoders[decoder]
    vocabulary = described["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.get)
    gap, vocabulary[last] = vocabulary[last], 1000
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = Tokenizer(tmp_path)
    stream = tokenizer.stream()
    known = [vocabulary["f"], 1000, 7]
    said = [stream.add(token) for token in (known[0], gap, known[1], 1001, 2**31, known[2])]
    text = "".join(said) + stream.finish()
    assert text.split() == tokenizer.decode(known).split()
    assert [tokenizer.token_bytes(token) for token in (gap, 1001)] == [b"", b""]


def test_streams_are_independent(tokenizer):
    one, two = tokenizer.stream(), tokenizer.stream()
    one.add(tokenizer.encode("the")[0])
    assert two.finish() == ""


def test_a_conversation(tokenizer):
    ids = tokenizer.chat([{"role": "user", "content": "the fox"}])
    assert tokenizer.decode(ids) == "<user>the fox<assistant>"


def test_messages_that_the_template_refuses(tokenizer):
    with pytest.raises(ValueError, match="no system"):
        tokenizer.chat([{"role": "system", "content": "x"}])


def test_messages_that_are_too_deep_for_the_template(folder, tmp_path):
    template = "{{ messages | tojson }}"
    other = Tokenizer(with_settings(folder, tmp_path / "t", chat_template=template))
    deep = []
    for _ in range(4000):
        deep = [deep]
    with pytest.raises(ValueError, match="template refuses"):
        other.chat([{"role": "user", "content": deep}])


def test_without_a_template_the_contents_are_lines(folder, tmp_path):
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    plain = Tokenizer(tmp_path)
    assert not plain.has_chat
    assert not has_chat_template(tmp_path)
    assert has_chat_template(folder)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert has_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    assert plain.decode(plain.chat(messages)) == "a\nb"


TOOL_TEMPLATE = TEMPLATE + "{# <tool_call> tool_call.name #}{% if tools %} tools{% endif %}"
NAMED = {"default": TEMPLATE, "tool_use": TOOL_TEMPLATE}
PLACES = {
    "chat_template.json": lambda folder: (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": TEMPLATE})
    ),
    "chat_template.json, several": lambda folder: (folder / "chat_template.json").write_text(
        json.dumps({"chat_template": NAMED})
    ),
    "tokenizer_config.json, several": lambda folder: configured(
        folder, [{"name": name, "template": text} for name, text in NAMED.items()]
    ),
    "chat_template.jinja": lambda folder: (folder / "chat_template.jinja").write_text(TEMPLATE),
    "additional_chat_templates": lambda folder: (
        (folder / "chat_template.jinja").write_text(TEMPLATE),
        (folder / "additional_chat_templates").mkdir(),
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_TEMPLATE),
    ),
}


def configured(folder, template):
    """A chat template in the tokenizer's settings, or none."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("chat_template", None)
    if template:
        config["chat_template"] = template
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("place", PLACES)
def test_a_chat_template_is_used_wherever_it_is(folder, tmp_path, place):
    copy = with_settings(folder, tmp_path / "t")
    configured(copy, None)
    assert not has_chat_template(copy)
    PLACES[place](copy)
    assert has_chat_template(copy)
    other = Tokenizer(copy)
    talk = [{"role": "user", "content": "the fox"}]
    assert other.has_chat
    assert other.decode(other.chat(talk)) == "<user>the fox<assistant>"
    several = "several" in place or "additional" in place
    assert (other.tools is not None) == several
    assert other.decode(other.chat(talk, [TOOL])).endswith(" tools") == several


@pytest.mark.parametrize("told", [None, 3, [], {}, {"default": 3}, [{"name": "default"}], [3]])
def test_a_file_of_a_chat_template_that_has_none(folder, tmp_path, told):
    copy = with_settings(folder, tmp_path / "t")
    configured(copy, None)
    (copy / "chat_template.json").write_text(json.dumps({"chat_template": told}))
    with pytest.raises(LoadError, match=r"chat_template.json has no text"):
        Tokenizer(copy)
    configured(copy, TEMPLATE)  # which transformers prefers
    assert Tokenizer(copy).has_chat


def test_ends_come_from_the_settings_and_the_tokenizer(folder, tokenizer, tmp_path):
    end = tokenizer.encode("<end>")[0]
    assert tokenizer.eos == {7, end}
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    assert Tokenizer(tmp_path).eos == {8, 9, end}


SAID: dict[str, tuple[str, dict[str, float]]] = {
    "all": (
        '{"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, '
        '"repetition_penalty": 1.05}',
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05},
    ),
    "whole numbers": ('{"temperature": 1, "top_k": 64.0}', {"temperature": 1.0, "top_k": 64}),
    "not at random": ('{"do_sample": false, "temperature": 0.7}', {"temperature": 0.0}),
    "at random": ('{"do_sample": true, "temperature": 0.7}', {"temperature": 0.7}),
    "nonsense": (
        '{"temperature": null, "top_p": "1", "top_k": -1, "min_p": NaN, "repetition_penalty": 0}',
        {},
    ),
    "too much": ('{"temperature": 1e999, "top_p": true, "top_k": 1e30, "do_sample": 0}', {}),
    "no object": ("[]", {}),
    "no JSON": ("{", {}),
}


@pytest.mark.parametrize(("text", "sampling"), SAID.values(), ids=SAID)
def test_what_the_makers_say_of_drawing(tmp_path, text, sampling):
    assert own_sampling(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text(text)
    assert own_sampling(tmp_path) == sampling


ENDS: dict[str, tuple[object, frozenset[int]]] = {
    "below 0": ([-5, 2], frozenset((2,))),
    "none": (-1, frozenset()),
    "beyond u32": ([10**20, 1 << 32, 2], frozenset((2,))),
    "no number": (True, frozenset()),
}


@pytest.mark.parametrize(("said", "ends"), ENDS.values(), ids=ENDS)
def test_ends_that_no_token_has_end_nothing(tmp_path, said, ends):
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": said}))
    assert eos_ids(tmp_path) == ends


def test_too_many_ends(folder, tmp_path):
    copy = with_settings(folder, tmp_path / "t")
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [*range(29_995)]}))
    with pytest.raises(LoadError, match=r"config.json has 29995 .* for eos_token_id") as caught:
        Tokenizer(copy)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("ends", [["</s>"], [2, None], [[2]], [True, 2]])
def test_ends_that_are_no_ids(folder, tmp_path, ends):
    copy = with_settings(folder, tmp_path / "t")
    (copy / "config.json").write_text(json.dumps({"eos_token_id": ends}))
    with pytest.raises(LoadError, match=r"config.json has .* for eos_token_id"):
        Tokenizer(copy)


def test_a_folder_without_a_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(LoadError, match="has no tokenizer"):
        Tokenizer(tmp_path)


def test_a_tokenizer_that_has_not_been_fetched(folder, tmp_path):
    copy = with_settings(folder, tmp_path / "t")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n"
    (copy / "tokenizer.json").write_text(pointer)
    for load in (check_tokenizer, Tokenizer):
        with pytest.raises(LoadError, match=r"tokenizer.json has not been fetched: .*git lfs pull"):
            load(copy)


def with_settings(folder, copy, **settings):
    """A copy of the tokenizer in *folder* with other settings."""
    copy.mkdir()
    for file in folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text()) | settings
    (copy / "tokenizer_config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "nemotron_h", "head_dim": None},
        {"model_type": "granitemoehybrid", "mamba_n_heads": None},
        {"model_type": "llama", "hidden_size": None},
        {"model_type": "llama", "max_position_embeddings": "x"},
        {"model_type": "of_tomorrow", "auto_map": {"AutoConfig": "configuration.Config"}},
    ],
)
def test_a_configuration_that_transformers_refuses(folder, tmp_path, tokenizer, config):
    copy = with_settings(folder, tmp_path / "t")
    (copy / "config.json").write_text(json.dumps(config))
    other = Tokenizer(copy)
    assert other.encode(TEXT) == tokenizer.encode(TEXT)
    assert other.eos == tokenizer.eos - {7}


@pytest.mark.parametrize("auto", [{"AutoTokenizer": ["own.Own", None]}, ["own.Own", None]])
def test_a_tokenizer_that_is_code(folder, tmp_path, tokenizer, auto):
    copy = with_settings(folder, tmp_path / "t", auto_map=auto, tokenizer_class="Own")
    (copy / "own.py").write_text("raise SystemExit('it was run')")
    assert Tokenizer(copy).encode(TEXT) == tokenizer.encode(TEXT)
    (copy / "tokenizer.json").unlink()
    for use in (check_tokenizer, Tokenizer):
        with pytest.raises(LoadError, match=r"code of the model's own \(own.Own\)"):
            use(copy)


FORMATS = {
    "json_tools": '{"name": "f", "arguments": {"x": [1, "ü"]}}',
    "qwen3_coder": '<function=f><parameter=x>[1, "ü"]</parameter></function>',
    "mistral": 'f[ARGS]{"x": [1, "ü"]}',
    "pythonic": '[f(x=[1, "ü"])]',
    "minimax_m2": '<invoke name="f"><parameter name="x">[1, "ü"]</parameter></invoke>',
    "longcat": '{"name": "f", "arguments": {"x": [1, "ü"]}}',
    "laguna": 'f\n<arg_key>x</arg_key>\n<arg_value>[1, "ü"]</arg_value>',
    "kimi_k2": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"x": [1, "ü"]}<|tool_call_end|>',
}
TOOL = {"function": {"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}}


@pytest.mark.parametrize(("name", "text"), FORMATS.items(), ids=FORMATS)
def test_tool_calls_in_the_model_s_own_format(folder, tmp_path, name, text):
    tools = Tokenizer(with_settings(folder, tmp_path / "t", tool_parser_type=name)).tools
    (call,) = tools.parse(text, [TOOL])
    assert call.name == "f"
    assert json.loads(call.arguments) == {"x": [1, "ü"]}
    assert "ü" in call.arguments
    assert tools.start
    with contextlib.suppress(ValueError):  # to some formats it is a text like any other
        tools.parse(text.replace('[1, "ü"]', "[" * 4000), [TOOL])
    for wrong in ("", "x", "{", "[]", "[1]", "<function="):
        with pytest.raises(ValueError, match=r"\w"):
            tools.parse(wrong, [TOOL])
    with pytest.raises(ValueError, match="a tool that there is"):
        tools.parse(text, [{"function": {"name": "g", "parameters": {}}}])


def test_a_call_of_no_function_leaves_those_beside_it(folder, tmp_path):
    """One of a parser of mlx-lm's."""
    tools = Tokenizer(with_settings(folder, tmp_path / "t", tool_parser_type="pythonic")).tools
    first, second = tools.parse("[h(x=[2]), f(x=[1])]", [TOOL])
    assert (first.name, first.arguments) == ("", '{"name": "h", "arguments": {"x": [2]}}')
    assert (second.name, second.arguments) == ("f", '{"x": [1]}')


def test_the_format_of_tool_calls_shows_in_the_template(folder, tmp_path, tokenizer):
    assert tokenizer.tools is None
    template = TEMPLATE + "{# <tool_call> tool_call.name #}"
    other = Tokenizer(with_settings(folder, tmp_path / "t", chat_template=template))
    assert (other.tools.start, other.tools.end) == ("<tool_call>", "</tool_call>")


def test_a_parser_that_is_not_there(folder, tmp_path):
    with pytest.raises(LoadError, match="cannot be loaded"):
        Tokenizer(with_settings(folder, tmp_path / "t", tool_parser_type="none_such"))


def test_tools_and_settings_reach_the_template(folder, tmp_path):
    template = "{{ tools[0].function.name if tools else 'none' }} {{ mood }}"
    other = Tokenizer(with_settings(folder, tmp_path / "t", chat_template=template))
    talk = [{"role": "user", "content": "x"}]
    assert other.decode(other.chat(talk, [TOOL], mood="fox")) == "f fox"
    assert other.decode(other.chat(talk, mood="fox")) == "none fox"
    with pytest.raises(ValueError, match="refuses these messages"):
        other.chat([])
    assert {"chat_template", "tokenize", "max_length"} <= other.reserved
    assert not {"mood", "enable_thinking"} & other.reserved


def test_tokens_are_bytes_that_add_up(tokenizer):
    ids = tokenizer.encode(TEXT)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == TEXT
    assert tokenizer.token_bytes(tokenizer.encode("<end>")[0]) == b"<end>"
    assert tokenizer.token_bytes(tokenizer.vocabulary + 5) == b""


def test_reasoning_that_the_prompt_begins(folder, tmp_path, tokenizer):
    assert tokenizer.think == ("", "")
    assert not tokenizer.opens_thinking(tokenizer.encode("<think>"))
    copy = with_settings(
        folder,
        tmp_path / "t",
        added_tokens_decoder={
            "400": {"content": "<think>", "special": False},
            "401": {"content": "</think>", "special": False},
        },
    )
    thinker = Tokenizer(copy)
    assert thinker.think == ("<think>", "</think>")
    assert thinker.opens_thinking(thinker.encode("the fox<think>\n"))
    assert not thinker.opens_thinking(thinker.encode("<think></think>\n"))


def test_no_mlx_is_imported(folder, tmp_path):
    copy = with_settings(folder, tmp_path / "t", tool_parser_type="laguna")
    code = (
        "import sys; from pathlib import Path; from sealring_model.text.tokens import Tokenizer; "
        "t = Tokenizer(Path(sys.argv[1])); t.chat([{'role': 'user', 'content': 'x'}]); "
        "assert t.tools; "
        "assert not {m.split('.')[0] for m in sys.modules} & {'mlx', 'mlx_lm'}"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(copy)], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""
